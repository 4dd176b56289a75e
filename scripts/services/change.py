"""What serve.up, serve.scale, serve.down, serve.key and serve.export do: they change what is wanted of a service.

A command writes that into the journal, sees to it that a controller lives, and watches until it has come true.
"""

import dataclasses
import sys
import time
from pathlib import Path

from infra import train_env
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.names import check_name
from infra.settings import Settings
from scripts.cli import context, prompts, render
from scripts.cli.context import ROOT
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.services import controller_client, inspect, revision
from serve import controller_process
from serve import service as service_file
from serve.gateway import keys
from serve.policy import service_state, update
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import Member, Seen, Wanted
from serve.replicas.replica_pod import ENVIRONMENT, free_port
from serve.service import Service

SLACK_S = 120.0  # for what a launch does before and after, on a machine that is busy
TELL_EVERY_S = 30.0  # of a phase that lasts


def up(name, model, tag, replicas, provider, config, engine, mode, host, port, dry_run, yes, detach, json):
    settings = context.settings(provider="" if provider == revision.ANY else provider)
    if mode not in ("", *update.MODES):
        raise UsageError(f"--mode {mode}: known: {', '.join(update.MODES)}")
    if port is not None and not 0 <= port < 65536:
        raise UsageError(f"--port {port}: wanted is 1 to 65535, or 0 for any that is free")
    with open_journal(settings) as journal:
        name = check_name(name) if name else revision.the_name(config)
        before = journal.service(name)
        old = service_state.wanted_of(before.wanted) if before else None
        if old and old.is_ending:
            raise UsageError(f"{name} is being ended; when that is done (inv serve.status): the same again")
        document = revision.document_of(config, old, name, replicas)
        where = provider or (old.newest.provider if old else revision.usual_provider(settings))
        version = revision.version_of(
            document,
            model,
            tag,
            "" if where == revision.ANY else where,
            engine,
            settings,
            old.newest if old else None,
            name,
        )
        version = revision.with_room(revision.with_limit(version, settings), settings)
        if dry_run:
            revision.show_placement(name, version, settings, json)
            return
        revision.check_reach(version, settings)
        revision.check_plane(name, old, version.service)
        if version.service.ours.data_plane == service_file.ROUTER:  # which its controller would have to wait for
            train_env.interpreter(ROOT, settings.environments, render.say, service_file.ROUTER_GROUP)
        if old and port == 0 and not controller_process.is_kept(name, journal):
            port = free_port(())  # its own one may be somebody else's by now
        wanted = revision.after(old, version, mode, host, port, name, before, controller_process.is_kept(name, journal))
        if old and wanted == old and controller_process.is_kept(name, journal):
            render.say(f"{name}: nothing to change")
        elif wanted != old:
            if revision.rents(version, settings):
                revision.show_placement(name, version, settings, as_json=False, is_asked=False)
                prompts.confirm(yes)
            before = journal.want(name, service_state.write(wanted), before)
        try:
            seen = controller_client.ensure(name, settings, journal)
        except BaseException:
            if old is None:  # nothing was started yet
                controller_client.forget(name, journal)
            raise
        render.say(f"{name}: {seen.endpoint}")
        if not detach:
            try:
                await_ready(name, wanted, settings, journal, is_new=old is None)
            except KeyboardInterrupt:
                render.say(
                    f"{name} goes on without this command; see: inv serve.status {name}; end it: inv serve.down {name}"
                )
                raise
        inspect.show([name], settings, journal, with_replicas=False, as_json=json)


def await_ready(name: str, wanted: Wanted, settings: Settings, journal: Journal, is_new: bool) -> None:
    """Until as many replicas of the newest version are ready as there must be at least, and the older ones are gone.

    Another size that another command gives it meanwhile is waited for. Raises SlipwayError when it does not come about,
    or another command has put another version in its place; of a new service nothing is left then, but for the latter.
    """
    newest, told = wanted.newest.number, dict[str, str]()
    probe = wanted.newest.service.probe
    patience_s = SLACK_S + 2 * probe.initial_delay_seconds
    deadline = time.monotonic() + patience_s
    while True:
        seen, now = controller_client.looked(name, settings, journal)
        if now.newest.number != newest:
            raise SlipwayError(f"{name}: another command has put version {now.newest.number} in the place of version "
                               f"{newest} meanwhile; see: inv serve.status {name} --all")  # fmt: skip
        service = now.newest.service
        say_changes(seen, told)
        alive = [one for one in seen.members if one.state in LIVE]
        if any(one.version == newest and awaits_engine(one) for one in alive):
            deadline = time.monotonic() + patience_s  # it counts from an engine's start, as initial_delay_seconds does
        are_there = revision.ready_of(seen, newest) >= service.policy.min_replicas
        if are_there and all(one.version == newest for one in alive) and not is_on_its_way(seen, service):
            return
        if seen.held and not any(one.version == newest for one in alive):
            why = f"{name}: version {newest} does not come up: {seen.held}"
            break
        if time.monotonic() > deadline:
            why = f"{name}: not ready after {patience_s:.0f} s"
            break
        time.sleep(controller_client.POLL_S)
    if is_new:
        controller_client.finish(name, settings, journal)
    failed = [one for one in seen.members if one.version == newest and one.why and (is_new or one.ended_at)]
    last = (
        f"\n  {failed[-1].run}: {failed[-1].why}\n  its log ends: {last_words(failed[-1], settings)}" if failed else ""
    )
    hints = f"raise initial_delay_seconds ({probe.initial_delay_seconds:g}), or mend what its log says"
    if is_new:
        raise SlipwayError(f"{why}{last}\n  {hints}; nothing of it is left")
    raise SlipwayError(
        f"{why}{last}\n  the older replicas go on serving; {hints}, then the same again; "
        f"see: inv serve.status {name} --all"
    )


def is_on_its_way(seen: Seen, service: Service) -> bool:
    """Whether more are there than there will be, or fewer."""
    return sum(one.state in LIVE for one in seen.members) > service.policy.most


def last_words(one: Member, settings: Settings) -> str:
    log = settings.pods.parent / "logs" / one.run / "engine.log"
    return controller_process.tail(log, 4)


def awaits_engine(one: Member) -> bool:
    """Whether its machine and its environment are still being made, before its engine is started."""
    if one.state is State.STARTING:
        return all(phase == ENVIRONMENT for phase, _ in one.phases)
    return one.state in (State.PENDING, State.PROVISIONING)


def say_changes(seen: Seen, told: dict[str, str]) -> None:
    """What has changed since `told`; and now and then what a long phase is at."""
    for one in seen.members:
        spent = one.phase_s(time.time()) if one.state is State.STARTING else {}
        key = " ".join([one.state.value, *(f"{phase} {spent_s // TELL_EVERY_S:g}" for phase, spent_s in spent.items())])
        if told.get(one.run) != key:
            told[one.run] = key
            why = one.why if one.state is not State.READY else ""
            render.say(
                render.clean(
                    ": ".join(filter(None, (f"{one.run} {one.state.value}", why or controller_client.phases(one))))
                )
            )


def scale(name, min_replicas, max_replicas, detach, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        row = journal.service(name)
        assert row is not None
        old = service_state.wanted_of(row.wanted)
        if old.is_ending:
            raise UsageError(f"{name} is being ended")
        policy = old.newest.service.policy
        least = policy.min_replicas if min_replicas is None else min_replicas
        if max_replicas is not None and max_replicas != least and not revision.has_signal(old.newest.document):
            raise UsageError(
                f"{name} has a fixed size: nothing says when {least} to {max_replicas} replicas would be how many; "
                f"give target_qps_per_replica in a service file: inv serve.up {name} --config FILE"
            )
        most = max(policy.most, least) if max_replicas is None else max_replicas
        if least == policy.min_replicas and most == policy.most:
            render.say(f"{name}: nothing to change")
        else:
            document = revision.scaled(old.newest.document, least, most)
            service_file.parse(f"service {name}", document)
            newest = dataclasses.replace(old.newest, document=document)
            old = dataclasses.replace(old, versions=(*old.versions[:-1], newest))
            journal.want(name, service_state.write(old), row)
        controller_client.ensure(name, settings, journal)
        if not detach:
            await_ready(name, old, settings, journal, is_new=False)
        inspect.show([name], settings, journal, with_replicas=False, as_json=json)


def down(name, all, json):
    if name and all:
        raise UsageError(f"--all and {name}: give one of them")
    settings = context.settings()
    with open_journal(settings) as journal:
        names = [one.name for one in journal.services()] if all else [controller_client.find(name, journal)]
        for one in names:
            controller_client.finish(one, settings, journal)
            render.say(f"{one}: ended, nothing of it runs")
        if json:
            print_json({"ended": names})
        elif not names:
            render.say("no service is running")


def key(name, for_, drop, json):
    settings = context.settings()
    with open_journal(settings) as journal:
        known = [one.name for one in journal.services()]
        name = check_name(name) if name else controller_client.find("", journal)
    if drop and not for_:
        raise UsageError("--drop: whose key? --for NAME")
    path = controller_process.Places.of(settings, name).keys
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not for_:
        if json:
            print_json({"service": name, "keys": names})
        else:
            render.say(f"{name}: {', '.join(names) or 'no keys: whoever reaches it may ask'}")
        return
    if drop and for_ not in names:
        raise UsageError(f"{name} has no key for {for_}; there is: {', '.join(names) or 'none'}")
    if drop and len(names) == 1 and name in known:
        raise UsageError(f"that is the only key of {name}, without which anybody may ask; make another one first")
    if not drop and for_ in names:
        raise UsageError(f"{name} has a key for {for_}, of which only the hash is kept; --drop it first")
    lines = [line for line in lines if line.split()[:1] != [for_]]
    made = ""
    if not drop:
        made, line = keys.make(for_)
        lines.append(line)
    from infra.agent.job import write_durably

    write_durably(path, "".join(f"{line}\n" for line in lines), 0o600)
    if json:
        print_json({"service": name, "for": for_, "key": made or None})
    elif drop:
        render.say(f"{name}: the key of {for_} is void")
    else:
        render.say(f"{name}: the key of {for_}, which is not shown again:")
        print(made)


def export(config, engine, model, out):
    import yaml

    if engine != "skyserve":
        raise UsageError(f"--engine {engine}: known: skyserve")
    settings = context.settings()
    with open_journal(settings) as journal:
        row = journal.service(config) if config else None
    service = service_state.wanted_of(row.wanted).newest.service if row else service_file.load(revision.path_of(config))
    document = service_file.to_skyserve(service, model)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    if out:
        try:
            Path(out).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {out}: {error.strerror}") from None
        render.say(f"sky serve up {out} --service-name {service.file.name or 'slipway'}")
    else:
        sys.stdout.write(text)
