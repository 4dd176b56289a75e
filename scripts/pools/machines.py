"""The commands `pool.*` and `hosts`: the inventory, whether each machine can be used, and which ones have failed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke import Exit

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.machines import inventory, pool_import, survey
from infra.machines.host_memory import HostMemory
from infra.providers.ssh import connections
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import clean, columns
from scripts.pools.flags import CheckFlags, HostsFlags, ImportFlags, ListFlags, UpFlags


def list_(spec: ListFlags) -> None:
    settings = context.settings()
    hosts, unusable = meant(settings, spec.pool)
    known = HostMemory.beside(settings.state_file).all()
    with Journal.open(settings.state_file) as journal:
        leases = {op.place: op.run for op in journal.ops(live=True) if op.vendor == "ssh" and op.place}
    rows = [about(host, known.get(f"ssh:{host.place}"), leases.get(host.place)) for host in hosts]
    if spec.json:
        rows += [{"pool": one.pool, "host": one.name or None, "problem": one.why} for one in unusable]
        print_json(rows)
        return
    table = [("pool", "host", "address", "GPUs", "USD/h", "state")]
    for row in rows:
        gpus = "?" if row["num_gpus"] is None else f"{row['num_gpus']} x {row['gpu']}" if row["num_gpus"] else "none"
        state = f"leased by {row['leased_by']}" if row["leased_by"] else "free"
        state += f"; failed: {row['failure']}" if row["failure"] else ""
        table.append((row["pool"], row["host"], row["address"], gpus, row["usd_per_hour"], state))
    table += [(one.pool, one.name or "all", "?", "?", "?", f"cannot be used: {one.why}") for one in unusable]
    print(clean(columns(table)))


def about(host: inventory.Host, known: Any, run: str | None) -> dict[str, Any]:
    """Return one machine of the inventory as JSON; null is what nobody knows."""
    facts = known.facts if known else {}
    what = survey.has(host, facts)
    return {
        "pool": host.pool,
        "host": host.name,
        "address": host.address.place,
        "gpu": what.gpu or None,
        "num_gpus": what.num_gpus,
        "memory_bytes": what.memory_bytes,
        "usd_per_hour": render.usd(host.micro_usd_per_hour),
        "labels": dict(host.labels),
        "leased_by": run,
        "problem": None,
        "failure": known.failure or None if known else None,
        "seen_at": render.iso(known.seen_at) if known else None,
    }


def up(spec: UpFlags) -> None:
    settings = context.settings()
    hosts, unusable = meant(settings, spec.pool)
    looks = survey.look(hosts, connections(settings), HostMemory.beside(settings.state_file))
    seen = [(one.host.place, one.facts, one.problem) for one in looks] + [(one.place, {}, one.why) for one in unusable]
    if spec.json:
        print_json([{"host": place, "problem": problem or None, **facts} for place, facts, problem in seen])
    else:
        heads = ("host", "CPUs", "memory", "disk free", "GPUs", "Python", "rsync", "uv", "")
        verdicts = [(one.host.place, one.facts, one.verdict) for one in looks]
        verdicts += [(one.place, {}, one.why) for one in unusable]
        print(clean(columns([heads, *(up_row(*one) for one in verdicts)])))
    leave([(place, problem) for place, _, problem in seen])


def meant(settings: Settings, word: str) -> tuple[Sequence[inventory.Host], Sequence[inventory.Unusable]]:
    """Return the machines that a word means, and the entries that cannot be used. Raises UsageError."""
    own = inventory.load(settings.pools)
    unusable = own.unusable_in(word)
    is_only = unusable and not any(word in ("", one.pool, one.place, one.name) for one in own.hosts)
    return (() if is_only else own.select(word)), unusable


def up_row(place: str, facts: Mapping[str, Any], verdict: str) -> tuple[str, ...]:
    """Return the line of a machine that was asked; without facts it did not answer."""
    if not facts:
        return (place, *("?",) * 7, verdict)
    gpus = [gpu["name"] for gpu in facts["gpus"]]
    return (
        place,
        str(facts["cpus"]),
        gigabytes(facts["memory_bytes"]),
        gigabytes(facts["free_bytes"]),
        f"{len(gpus)} x {gpus[0]}" if gpus else "none",
        facts["python"],
        "yes" if facts["rsync"] else "no",
        "yes" if facts["uv"] else "no",
        verdict,
    )


def gigabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e9:.0f} GB"


def check(spec: CheckFlags) -> None:
    settings = context.settings()
    hosts, unusable = meant(settings, spec.pool)
    looks = survey.reachable(hosts, connections(settings))
    seen = [(one.host.place, one.problem) for one in looks] + [(one.place, one.why) for one in unusable]
    if spec.json:
        says = [one.shell_says for one in looks] + [""] * len(unusable)
        print_json([{"host": place, "problem": problem or None, "shell_says": said}
                    for (place, problem), said in zip(seen, says, strict=True)])  # fmt: skip
    else:
        verdicts = [(one.host.place, one.verdict) for one in looks] + [(one.place, one.why) for one in unusable]
        print(clean(columns(verdicts)))
    leave(seen)


def leave(seen: Sequence[tuple[str, str]]) -> None:
    """Exit with an error where a machine has a problem."""
    bad = [place for place, problem in seen if problem]
    if bad:
        raise Exit(f"{len(bad)} of {len(seen)} machines cannot be used: {', '.join(bad)}", code=1)


def import_(spec: ImportFlags) -> None:
    if not spec.from_:
        raise UsageError(
            "--from FILE is missing: inv pool.import --from terraform.json, made with: terraform output -json"
        )
    path = context.settings().pools
    found = pool_import.addresses(Path(spec.from_).expanduser(), spec.output)
    plan = pool_import.plan(path, spec.pool, found, user=spec.user, key=spec.key)
    if not spec.dry_run:
        pool_import.write(plan)
    if spec.json:
        print_json({"file": path, "pool": spec.pool, "written": not spec.dry_run, "new": plan.new, "known": plan.known})
        return
    for one in (*plan.new, *plan.known):
        print(f"{'new' if one in plan.new else 'known'}  {one.address}  {one.origin}")
    render.say(f"{path}: {len(plan.new)} machines {'would be added' if spec.dry_run else 'added'} to {spec.pool}")


def hosts(spec: HostsFlags) -> None:
    memory = HostMemory.beside(context.settings().state_file)
    failed = {machine: known for machine, known in memory.all().items() if known.failure}
    for word in spec.forget:
        found = [machine for machine in failed if word in (machine, machine.partition(":")[2])]
        if not found:
            raise UsageError(f"{word!r} is not remembered; available: {', '.join(failed) or 'nothing'}")
        for machine in found:
            memory.forgive(machine)
            failed.pop(machine)
            render.say(f"{machine} may be offered again")
    if spec.json:
        print_json(
            {name: {"failure": one.failure, "failed_at": render.iso(one.failed_at)} for name, one in failed.items()}
        )
    elif failed:
        rows = [("machine", "failed at", "why")]
        rows += [(name, str(render.iso(one.failed_at)), one.failure) for name, one in failed.items()]
        print(clean(columns(rows)))
    elif not spec.forget:
        render.say("no machine has failed")
