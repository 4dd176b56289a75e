"""What serve.up, serve.scale, serve.down, serve.key and serve.export do: they change what is wanted of a service.

A command writes that into the journal, sees to it that a controller lives, and watches until it has come true.
"""

import dataclasses
import hashlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra import inside
from infra.agent import environment
from infra.errors import SlipwayError, UsageError
from infra.journal import Held, Journal
from infra.journal import Service as Row
from infra.money import dollars
from infra.names import check_name, match
from infra.settings import VENDORS, Settings
from scripts import render, words
from scripts.choosing import SPEND_LIMIT
from scripts.ledger import open_journal
from scripts.models import model_folder
from scripts.planning import ROOT
from scripts.program import print_json
from scripts.project import columns
from serve import detached, engines, memory, models, placement, room, update
from serve import service as service_file
from serve.gateway import keys
from serve.memory import Member, Seen, Version, Wanted
from serve.service import Service
from serve.states import LIVE, State
from trainer.plan import CHECKPOINTS

CONFIG = ROOT / "serve" / "service.yaml"
ANY = "any"
POLL_S = 0.1
LEAVE_S = 600.0  # requests under way, then the engines, then proof from whoever rents them out
SLACK_S = 120.0  # of a launch: machine, code, environment


def up(name, model, tag, replicas, provider, config, engine, mode, host, port, dry_run, detach, json):
    settings = words.settings(provider="" if provider == ANY else provider)
    if mode not in ("", *update.MODES):
        raise UsageError(f"--mode {mode}: known: {', '.join(update.MODES)}")
    with open_journal(settings) as journal:
        name = check_name(name) if name else the_name(config)
        before = journal.service(name)
        old = memory.wanted_of(before.wanted) if before else None
        if old and old.is_ending:
            raise UsageError(f"{name} is being ended; when that is done (inv serve.status): the same again")
        document = document_of(config, old, name, replicas)
        where = provider or (old.newest.provider if old else usual_provider(settings))
        version = version_of(
            document, model, tag, "" if where == ANY else where, engine, settings, old.newest if old else None, name
        )
        version = with_limit(version, settings)
        if dry_run:
            show_placement(name, version, settings, json)
            return
        check_reach(version, settings)
        wanted = after(old, version, mode, host, port, name, before, journal)
        if old and wanted == old and detached.is_kept(name, journal):
            render.say(f"{name}: nothing to change")
        elif wanted != old:
            before = journal.want(name, memory.write(wanted), before)
        try:
            seen = ensure(name, settings, journal)
        except SlipwayError:
            if old is None:  # nothing was started yet
                forget(name, journal)
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
        tell(name, settings, journal, json)


def usual_provider(settings: Settings) -> str:
    """What somebody has chosen; else wherever there is room."""
    return ANY if settings.sources["provider"].startswith("default") else settings.provider


def the_name(config: str) -> str:
    """The one that its file says."""
    return check_name(service_file.load(path_of(config)).file.name or "slipway")


def path_of(config: str) -> Path:
    """`service` and `service.yaml` are the one that is shipped, unless they are there where one is."""
    if not config:
        return CONFIG
    found = [path for path in (Path(config), Path(f"{config}.yaml")) if path.is_file()]
    shipped = [path for path in (CONFIG.parent / config, CONFIG.parent / f"{config}.yaml") if path.is_file()]
    return next(iter([*found, *shipped]), Path(config))


def document_of(config: str, old: Wanted | None, name: str, replicas: int | None) -> dict[str, Any]:
    """The service file as it is meant: what is typed outweighs it. Raises UsageError."""
    from infra import strict_yaml

    if old and not config:
        document = dict(old.newest.document)
    else:
        path = path_of(config)
        service_file.load(path)  # its mistakes are told by their place in it
        document = dict(strict_yaml.read(path))
    document["name"] = name
    if replicas is not None:
        if replicas < 1:
            raise UsageError(
                f"--replicas is {replicas}; it must be at least 1 (down to none: min_replicas in --config)"
            )
        section = {key: value for key, value in document["service"].items() if key != "replica_policy"}
        document["service"] = {**section, "replicas": replicas}
    return document


def version_of(
    document: Mapping[str, Any], model: str, tag: str, provider: str, engine: str, settings: Settings,
    old: Version | None, name: str,
) -> Version:  # fmt: skip
    """Numbered 1. Raises UsageError for a model or an engine that there is not."""
    service = service_file.parse(f"service {name}", document)
    is_shipped = old is None and service.ours.model == service_file.load(CONFIG).ours.model
    said = model or (old.model if old and not tag else "" if is_shipped else service.ours.model)
    source = folder_of(said, tag, settings, name)
    has_gpu = environment.torch_build() == "cuda" if provider in ("local", "") else True
    usual = "fake" if is_scripted(source) else old.engine if old else "vllm" if has_gpu else "vllm-cpu"
    chosen = engine or usual
    if chosen not in engines.ENVIRONMENTS:
        raise UsageError(f"--engine {chosen}: known: {', '.join(engines.ENVIRONMENTS)}")
    return Version(number=1, document=dict(document), where=f"service {name}", engine=chosen, provider=provider,
                   model=source, store=settings.store, weights=weights_of(source))  # fmt: skip


def folder_of(said: str, tag: str, settings: Settings, name: str) -> str:
    """Where the weights are: a folder of this machine, or where they are fetched from. Raises UsageError."""
    if not said or said in CHECKPOINTS:
        return str(models.model_folder(model_folder(settings, said, tag)))
    if "://" in said and not said.startswith("file://"):
        if not said.startswith(("hf://", "s3://")):
            raise UsageError(f"--model {said}: known: hf://user/repo, s3://bucket/folder, a folder, an artifact")
        return said
    found = models.resolve(said, name, store=settings.store, cache=models.default_cache(), say=render.say)
    return str(found.folder)


def is_scripted(source: str) -> bool:
    return "://" not in source and (Path(source) / models.FAKE).is_file()


def weights_of(source: str) -> str:
    """What tells one release from the next that lies in the same place; "" where that is not ours to see."""
    if "://" in source:
        return ""
    files = sorted((path.name, path.stat()) for path in Path(source).iterdir() if path.is_file())
    said = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def with_limit(version: Version, settings: Settings) -> Version:
    """What is rented never goes without a limit."""
    rented = [one for one in placement.candidates(version.provider, settings) if one in VENDORS]
    if not rented or version.service.ours.spend_limit is not None:
        return version
    render.say(f"slipway.spend_limit is not set: all replicas together may cost {SPEND_LIMIT} USD")
    ours = {**version.document.get("slipway", {}), "spend_limit": SPEND_LIMIT}
    return dataclasses.replace(version, document={**version.document, "slipway": ours})


def check_reach(version: Version, settings: Settings) -> None:
    """Whether the machines of a service can find its model, and hold it. Raises UsageError, before any is rented."""
    candidates = placement.candidates(version.provider, settings)
    if candidates == ("local",) and "://" not in version.model and version.engine != "fake":
        tuning = version.service.ours.engine
        room.check(Path(version.model), version.engine, tuning, room.here(version.engine, tuning))
    rented = [one for one in candidates if one in VENDORS]
    if rented and "://" not in version.model and not settings.rehearsal:
        raise UsageError(
            f"the model is {version.model} on this machine, which no rented machine can reach; first: "
            "inv ckpt.push --to hf://user/repo, then --model hf://user/repo"
        )


def after(
    old: Wanted | None, new: Version, mode: str, host: str, port: int | None, name: str, row: Row | None,
    journal: Journal,
) -> Wanted:  # fmt: skip
    """What is wanted from now on. Raises UsageError for what cannot be changed while it runs."""
    if old is None:
        return Wanted(versions=(new,), mode=mode or "rolling", host=host or "127.0.0.1", port=port or 0,
                      since=time.time())  # fmt: skip
    assert row is not None
    seen = memory.seen_of(row.seen)
    if (host and host != old.host) or (port and port not in (old.port, seen.port)):
        raise UsageError(
            f"{name} listens on {seen.endpoint}, and that stays; another address takes: inv serve.down {name}, "
            f"then inv serve.up {name}"
        )
    newest = old.newest
    if replaces_nothing(newest, new) and not (seen.held and not ready_of(seen, newest.number)):
        versions = (*old.versions[:-1], dataclasses.replace(new, number=newest.number))
    else:
        live = {one.version for one in seen.members if one.state in LIVE}
        kept = (one for one in old.versions if one.number in live or one is newest)
        versions = (*kept, dataclasses.replace(new, number=newest.number + 1))
    return dataclasses.replace(old, versions=versions, mode=mode or old.mode)


def replaces_nothing(one: Version, other: Version) -> bool:
    """Whether replicas of the one are replicas of the other: only how many and how they are asked has changed."""
    return _of_replicas(one) == _of_replicas(other)


def _of_replicas(version: Version) -> tuple[Any, ...]:
    said = {key: value for key, value in version.document.items() if key not in ("service", "slipway")}
    ours = version.document.get("slipway", {})
    same = (said, ours.get("served_name", ""), ours.get("engine", {}))
    return (*same, version.engine, version.model, version.weights)


def ready_of(seen: Seen, version: int) -> int:
    return sum(one.version == version and one.state is State.READY for one in seen.members)


def show_placement(name: str, version: Version, settings: Settings, as_json: bool) -> None:
    """The order in which machines are tried, and what they cost. Raises NoOffer."""
    service = version.service
    request = placement.request_of(service, f"{name}-0")
    asked = placement.candidates(version.provider, settings)
    wants_spot = bool(service.file.resources.use_spot)
    found = placement.find(asked, words.vendors(settings), request, wants_spot, render.say)
    least, most = service.policy.min_replicas, service.policy.most
    if as_json:
        rows = [
            {"provider": one.provider, "offer_id": one.offer_id, "kind": placement.kind_of(one), "gpu": one.gpu or None,
             "num_gpus": one.num_gpus, "usd_per_hour": dollars(one.micro_usd_per_hour)} for one in found]  # fmt: skip
        print_json({"service": name, "model": version.model, "engine": version.engine, "min_replicas": least,
                    "max_replicas": most, "placement": rows})  # fmt: skip
        return
    table = [("", "kind", "provider", "machine", "GPUs", "USD/h")]
    for number, one in enumerate(found[:20], 1):
        what = f"{one.num_gpus} x {one.gpu}" if one.num_gpus else "none"
        table.append((str(number), placement.kind_of(one), one.provider, one.place or one.instance_type or one.offer_id,
                      what, dollars(one.micro_usd_per_hour)))  # fmt: skip
    render.say(f"{name}: {version.model} by {version.engine}, {least} to {most} replicas; machines in the order "
               "in which they are tried:")  # fmt: skip
    print(render.clean(columns(table)))
    rate, left = 0, least
    for one in found:  # an own machine holds one replica; a vendor has many of a kind
        taken = min(left, 1 if one.place else left)
        rate, left = rate + taken * one.micro_usd_per_hour, left - taken
    missing = f" ({least - left} of them: there is no machine for more)" if left else ""
    render.say(f"{least} replicas{missing}: about {dollars(rate)} USD/h; nothing was started")


def ensure(name: str, settings: Settings, journal: Journal) -> Seen:
    """A living controller, and what it says."""
    was_kept = detached.is_kept(name, journal)
    row = journal.service(name)
    seen = detached.ensure(name, settings, journal, lambda: python(settings), ROOT)
    if not was_kept and row is not None and row.seen:
        render.say(f"{name}: its controller was gone; another one has taken over")
    return seen


def look_after(name: str, settings: Settings, journal: Journal, as_json: bool) -> None:
    """What `inv keep` does for a service."""
    was_kept = detached.is_kept(name, journal)
    seen = ensure(name, settings, journal)
    holder = journal.holder(detached.lease_name(name))
    if was_kept and holder:
        render.say(f"{name} is kept by process {holder.pid} at {seen.endpoint}")
    if as_json:
        print_json({"run": name, "state": "kept", "keeper": holder.pid if holder else None})


def python(settings: Settings) -> Path:
    return inside.interpreter(ROOT, settings.environments, render.say, "serve")


def forget(name: str, journal: Journal) -> None:
    """Take back what was only wanted."""
    try:
        lease = journal.take(detached.lease_name(name))
    except Held:
        return
    journal.forget(name, lease)
    journal.release(lease)


def await_ready(name: str, wanted: Wanted, settings: Settings, journal: Journal, is_new: bool) -> None:
    """Until as many replicas of the newest version are ready as there must be at least, and the older ones are gone.

    Raises SlipwayError when that does not come about; of a new service nothing is left then.
    """
    service, newest, told = wanted.newest.service, wanted.newest.number, dict[str, str]()
    probe = service.probe
    patience_s = SLACK_S + 2 * probe.initial_delay_seconds
    deadline = time.monotonic() + patience_s
    while True:
        seen = looked(name, settings, journal)
        say_changes(seen, told)
        alive = [one for one in seen.members if one.state in LIVE]
        are_there = ready_of(seen, newest) >= service.policy.min_replicas
        if are_there and all(one.version == newest for one in alive) and not is_on_its_way(seen, service):
            return
        if seen.held and not any(one.version == newest for one in alive):
            why = f"{name}: version {newest} does not come up: {seen.held}"
            break
        if time.monotonic() > deadline:
            why = f"{name}: not ready after {patience_s:.0f} s"
            break
        time.sleep(POLL_S)
    if is_new:
        finish(name, settings, journal)
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
    return detached.tail(log, 4)


def looked(name: str, settings: Settings, journal: Journal) -> Seen:
    """What is seen of it now. Raises SlipwayError when its controller has failed."""
    row = journal.service(name)
    if row is None:
        raise SlipwayError(f"{name} was ended meanwhile")
    if not detached.is_kept(name, journal):
        return ensure(name, settings, journal)
    return memory.seen_of(row.seen)


def say_changes(seen: Seen, told: dict[str, str]) -> None:
    for one in seen.members:
        state = one.state.value
        if told.get(one.run) != state:
            told[one.run] = state
            why = f": {one.why}" if one.why and one.state is not State.READY else ""
            render.say(render.clean(f"{one.run} {state}{why}"))


def scale(name, min_replicas, max_replicas, detach, json):
    settings = words.settings()
    with open_journal(settings) as journal:
        name = find(name, journal)
        row = journal.service(name)
        assert row is not None
        old = memory.wanted_of(row.wanted)
        if old.is_ending:
            raise UsageError(f"{name} is being ended")
        policy = old.newest.service.policy
        least = policy.min_replicas if min_replicas is None else min_replicas
        most = max(policy.most, least) if max_replicas is None else max_replicas
        if least == policy.min_replicas and most == policy.most:
            render.say(f"{name}: nothing to change")
        else:
            document = scaled(old.newest.document, least, most)
            service_file.parse(f"service {name}", document)
            newest = dataclasses.replace(old.newest, document=document)
            old = dataclasses.replace(old, versions=(*old.versions[:-1], newest))
            journal.want(name, memory.write(old), row)
        ensure(name, settings, journal)
        if not detach:
            await_ready(name, old, settings, journal, is_new=False)
        tell(name, settings, journal, json)


def scaled(document: Mapping[str, Any], least: int, most: int) -> dict[str, Any]:
    """A service of a fixed size stays one, of another size."""
    section = dict(document["service"])
    policy = dict(section.pop("replica_policy", None) or {})
    section.pop("replicas", None)
    has_signal = "target_qps_per_replica" in policy or "target_queue_per_replica" in document.get("slipway", {})
    if not has_signal and most != least:
        most = least
    return {
        **document,
        "service": {**section, "replica_policy": {**policy, "min_replicas": least, "max_replicas": most}},
    }


def down(name, all, json):
    settings = words.settings()
    with open_journal(settings) as journal:
        names = [one.name for one in journal.services()] if all else [find(name, journal)]
        for one in names:
            finish(one, settings, journal)
            render.say(f"{one}: ended, nothing of it runs")
        if json:
            print_json({"ended": names})
        elif not names:
            render.say("no service is running")


def finish(name: str, settings: Settings, journal: Journal) -> None:
    """Raises SlipwayError when it is not proven that nothing of it runs."""
    row = journal.service(name)
    if row is not None:
        wanted = memory.wanted_of(row.wanted)
        if not wanted.is_ending:
            journal.want(name, memory.write(dataclasses.replace(wanted, is_ending=True)), row)
        detached.ensure(name, settings, journal, lambda: python(settings), ROOT)
    deadline = time.monotonic() + LEAVE_S
    while (row := journal.service(name)) is not None or detached.is_kept(name, journal):
        if row is not None and not detached.is_kept(name, journal):
            detached.ensure(name, settings, journal, lambda: python(settings), ROOT)
        if time.monotonic() > deadline:
            raise SlipwayError(f"{name} is still ending after {LEAVE_S:g} s; see: inv serve.logs {name} --controller")
        time.sleep(POLL_S)


def key(name, for_, drop, json):
    settings = words.settings()
    with open_journal(settings) as journal:
        known = [one.name for one in journal.services()]
        name = check_name(name) if name else find("", journal)
    path = detached.Places.of(settings, name).keys
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
    settings = words.settings()
    with open_journal(settings) as journal:
        row = journal.service(config) if config else None
    service = memory.wanted_of(row.wanted).newest.service if row else service_file.load(path_of(config))
    document = service_file.to_skyserve(service, model)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    if out:
        Path(out).write_text(text, encoding="utf-8")
        render.say(f"sky serve up {out} --service-name {service.file.name or 'slipway'}")
    else:
        sys.stdout.write(text)


def find(name: str, journal: Journal) -> str:
    """Of a service, by the beginning of its name, or the only one. Raises UsageError."""
    known = [one.name for one in journal.services()]
    if not known:
        raise UsageError("no service is running; begin with: inv serve.up")
    if not name and len(known) > 1:
        raise UsageError(f"which service? there is: {', '.join(known)}")
    return match(name, known) if name else known[0]


def tell(name: str, settings: Settings, journal: Journal, as_json: bool) -> None:
    """What there is now, as `serve.status` says it."""
    from scripts import serving

    serving.show([name], settings, journal, with_replicas=False, as_json=as_json)
