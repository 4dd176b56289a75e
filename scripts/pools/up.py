"""The command `pool.up`: a survey of every own machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.flags import flag
from infra.machines import survey
from infra.machines.host_memory import HostMemory
from infra.providers.ssh import connections
from scripts.cli import context
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import clean, columns, print_json
from scripts.pools.own_machines import exit_for_problems, select_machines


@dataclass(frozen=True, kw_only=True)
class UpFlags(Output):
    pool: str = flag("", "inspect only this pool or machine", word=True)


@command(record=UpFlags, world="", example="inv pool.up")
def up(spec: UpFlags) -> None:
    """Inspect every own machine, and record its hardware.

    The command records CPUs, memory, disk, GPUs, Python, rsync and uv, and can be repeated.
    """
    settings = context.settings()
    hosts, unusable = select_machines(settings, spec.pool)
    looks = survey.survey_hosts(hosts, connections(settings), HostMemory.for_journal(settings.state_file))
    seen = [(one.host.place, one.facts, one.problem) for one in looks] + [(one.place, {}, one.why) for one in unusable]
    if spec.json:
        print_json([{"host": place, "problem": problem or None, **facts} for place, facts, problem in seen])
    else:
        heads = ("host", "CPUs", "memory", "disk free", "GPUs", "Python", "rsync", "uv", "")
        verdicts = [(one.host.place, one.facts, one.verdict) for one in looks]
        verdicts += [(one.place, {}, one.why) for one in unusable]
        print(clean(columns([heads, *(up_row(*one) for one in verdicts)])))
    exit_for_problems([(place, problem) for place, _, problem in seen])


def up_row(place: str, facts: Mapping[str, Any], verdict: str) -> tuple[str, ...]:
    """Return the table row of a machine; without facts, the machine did not answer."""
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
