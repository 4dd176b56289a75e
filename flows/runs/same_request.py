"""Comparison of a launch with the active run of the same artifacts, to detect conflicting flags.

The run was found by the target, so the flags for artifacts agree. The other flags (machine, limits, saving) are
compared only where typed. `typed_launch` returns the journal record of a launch; `check` names the differences.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.specs.launch import LaunchSpec
from infra.agent.job import Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.op import Op
from infra.market import gpus
from infra.records import Request
from infra.settings import is_secret

OF_REQUEST = {
    "nodes": "nodes",
    "pool": "pool",
    "host": "host",
    "devices": "devices",
    "num_gpus": "num_gpus",
    "use_spot": "spot",
    "cpus": "cpus",
    "memory": "memory_bytes",
    "disk_size": "disk_bytes",
    "country": "country",
    "city": "city",
    "cloud": "cloud",
    "region": "region",
    "instance_type": "instance_type",
    "min_upload_mbps": "upload_mbps",
    "min_download_mbps": "download_mbps",
    "max_price": "max_micro_usd_per_hour",
    "volume": "volume",
    "machine_filter": "machine_filter",
}
OF_LIMITS = {"ttl": "time_s", "spend_limit": "spend_micro_usd", "idle_stop": "idle_gpu_s"}
# The flags with their defaults.
AS_TYPED = {
    "on_failure": "end",
    "self_end": False,
    "save_every": None,
    "keep": None,
    "ckpt_prefix": "",
    "notify": "",
    "send_anyway": (),
}


@dataclass(frozen=True)
class TypedLaunch:
    """The flags of a launch."""

    typed: Mapping[str, str]  # Typed flags by name; "" for a switch.
    meant: Mapping[str, Any]  # Resolved values of all flags, typed or not.
    name: str  # Name of the run; "" = not typed.
    vendors: tuple[str, ...]  # Chosen vendors; () = no choice.

    def to_json(self) -> str:
        """Return the record for the journal, as JSON."""
        return json.dumps({"typed": dict(self.typed), "meant": dict(self.meant)}, sort_keys=True)

    def with_spend_limit(self, micro_usd: int | None) -> "TypedLaunch":
        """Return the launch with the spend limit of the run, including a default limit."""
        return replace(self, meant={**self.meant, "spend_limit": micro_usd})

    def with_machine(self, request: Request) -> "TypedLaunch":
        """Return the launch with the GPUs of the chosen machine for untyped GPU flags."""
        found = {"gpu": kinds_of(request), "num_gpus": request.num_gpus}
        open_ones = {flag: value for flag, value in found.items() if flag not in self.typed}
        return replace(self, meant={**self.meant, **open_ones})

    def with_self_end(self) -> "TypedLaunch":
        """Return the launch with `--self-end`, which the user chose at the prompt."""
        return replace(self, typed={**self.typed, "self_end": ""}, meant={**self.meant, "self_end": True})

    def difference(self, op: Op) -> str:
        """Return the differences from the launch of the live run of `op` as a sentence; "" for none."""
        before = json.loads(op.asked) if op.asked else {"typed": {}, "meant": {}}
        other = [flag for flag in self.typed if self.meant[flag] != before["meant"].get(flag)]
        differs = [f"{_shown(flag, self.typed)} (there: {_there(flag, before)})" for flag in other]
        if self.name not in ("", op.run):
            differs.append(f"--run-name {self.name}")
        if self.vendors and op.vendor not in self.vendors:
            differs.append(f"a machine of {' or '.join(self.vendors)} (there: {op.vendor})")
        said = f"{op.run} is already running the same work, but was launched with other flags: {', '.join(differs)}"
        return said if differs else ""

    def check(self, op: Op) -> None:
        """Raise UsageError with the differences from the launch of the run of `op`, if any."""
        if said := self.difference(op):
            raise UsageError(
                f"{said}; nothing was changed. To follow the run, leave out these flags; to end the run first: "
                f"inv down {op.run}; to see the plan with these flags: --dry-run"
            )


def typed_launch(
    spec: LaunchSpec, request: Request, limits: Limits, *, vendors: tuple[str, ...], env: Mapping[str, str]
) -> TypedLaunch:
    """Return the typed and resolved flags of a launch. `limits` are for the whole run; `env` is from `--env`."""
    meant = {flag: getattr(request, name) for flag, name in OF_REQUEST.items()}
    meant |= {flag: getattr(limits, name) for flag, name in OF_LIMITS.items()}
    meant |= {flag: getattr(spec, flag) or default for flag, default in AS_TYPED.items()}
    meant["gpu"] = kinds_of(request)
    meant["all_configs"] = spec.all_configs
    said = {flag: getattr(spec, flag) for flag in meant}
    said["send_anyway"] = " ".join(spec.send_anyway)
    meant["send_anyway"] = of_checkout(spec.send_anyway)
    for limit, (flag, meaning) in spec.limits_from.items():  # a duration until a time of day is new at each launch
        said[limit] = ""
        said[flag] = meant[flag] = meaning
    typed = {flag: "" if value is True else str(value) for flag, value in said.items() if value}
    if env:  # Only the name of a secret is recorded.
        shown = sorted(name if is_secret(name) else f"{name}={value}" for name, value in env.items())
        meant["env"], typed["env"] = shown, " ".join(shown)
    return TypedLaunch(typed, json.loads(json.dumps(meant)), spec.run_name, vendors)


def kinds_of(request: Request) -> list[list[Any]]:
    """Return the requested GPU kinds with their counts, sorted, in the journal's form."""
    return sorted([gpus.canonical_name(kind).lower(), count] for kind, count in gpus.read_set(request.gpu))


def of_checkout(names: Sequence[str]) -> list[str]:
    """Return the file names, relative to the checkout if inside, as a copy of the checkout needs."""
    paths = [Path(name).expanduser() for name in names]
    return [str(one.relative_to(ROOT)) if one.is_relative_to(ROOT) else str(one) for one in paths]


def with_limits(asked: str, ttl: str, spend_limit: str, limits: Limits) -> str:
    """Return the journal record of a run to continue with new limits."""
    if not asked:
        return asked
    record = json.loads(asked)
    for flag, text in (("ttl", ttl), ("spend_limit", spend_limit)):
        if text:
            record["typed"][flag], record["meant"][flag] = text, getattr(limits, OF_LIMITS[flag])
    return json.dumps(record, sort_keys=True)


def _shown(flag: str, typed: Mapping[str, str]) -> str:
    return f"--{flag.replace('_', '-')} {typed[flag]}".rstrip()


def _there(flag: str, before: Mapping[str, Any]) -> str:
    if flag not in before["meant"]:
        return "not on record"
    return before["typed"].get(flag) or ("given" if flag in before["typed"] else "not given")
