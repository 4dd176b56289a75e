"""Compare a launch with the run that is at work on the same artifacts: whether the same was asked for.

The run was found by what it makes, so that those words agree. The others (which machine, what ends it, how it saves)
are compared where they were typed. In: the flags of a launch. Out: what the journal keeps of them; the difference, in
words.
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
    "nodes": "nodes", "pool": "pool", "host": "host", "devices": "devices", "num_gpus": "num_gpus",
    "use_spot": "spot", "cpus": "cpus", "memory": "memory_bytes", "disk_size": "disk_bytes", "country": "country",
    "city": "city", "cloud": "cloud", "region": "region", "instance_type": "instance_type",
    "min_upload_mbps": "upload_mbps",
    "min_download_mbps": "download_mbps", "max_price": "max_micro_usd_per_hour",
    "volume": "volume", "machine_filter": "machine_filter",
}  # fmt: skip
OF_LIMITS = {"ttl": "time_s", "spend_limit": "spend_micro_usd", "idle_stop": "idle_gpu_s"}
AS_TYPED = {
    "on_failure": "end",
    "self_end": False,
    "save_every": None,
    "keep": None,
    "ckpt_prefix": "",
    "notify": "",
    "send_anyway": (),
}  # with what they mean when not


@dataclass(frozen=True)
class TypedLaunch:
    """The words of one launch."""

    typed: Mapping[str, str]  # flags as they were typed, by name; "" for a switch
    meant: Mapping[str, Any]  # resolved values of all flags, typed or not
    name: str  # name of the run, "" when none was typed
    vendors: tuple[str, ...]  # the chosen vendors, () when nobody chose

    def record(self) -> str:
        """Return the record for the journal, as JSON."""
        return json.dumps({"typed": dict(self.typed), "meant": dict(self.meant)}, sort_keys=True)

    def with_spend_limit(self, micro_usd: int | None) -> "TypedLaunch":
        """Return the launch with the spend limit of its run, also one that nobody typed."""
        return replace(self, meant={**self.meant, "spend_limit": micro_usd})

    def with_machine(self, request: Request) -> "TypedLaunch":
        """Return the launch with the GPUs of its machine where nobody typed them."""
        found = {"gpu": kinds_of(request), "num_gpus": request.num_gpus}
        open_ones = {flag: value for flag, value in found.items() if flag not in self.typed}
        return replace(self, meant={**self.meant, **open_ones})

    def with_self_end(self) -> "TypedLaunch":
        """Return the launch with `--self-end`, which the user chose at the question."""
        return replace(self, typed={**self.typed, "self_end": ""}, meant={**self.meant, "self_end": True})

    def check(self, op: Op) -> None:
        """Raise UsageError that names what differs from how the run of `op` was launched."""
        before = json.loads(op.asked) if op.asked else {"typed": {}, "meant": {}}
        other = [flag for flag in self.typed if self.meant[flag] != before["meant"].get(flag)]
        differs = [f"{_shown(flag, self.typed)} (there: {_there(flag, before)})" for flag in other]
        if self.name not in ("", op.run):
            differs.append(f"--run-name {self.name}")
        if self.vendors and op.vendor not in self.vendors:
            differs.append(f"a machine of {' or '.join(self.vendors)} (there: {op.vendor})")
        if differs:
            raise UsageError(
                f"{op.run} is already running the same work, and was launched with other flags: {', '.join(differs)}; "
                f"nothing was changed. To follow it, leave those flags out; "
                f"or end it first: inv down {op.run}"
            )


def asking(
    spec: LaunchSpec, request: Request, limits: Limits, *, vendors: tuple[str, ...], env: Mapping[str, str]
) -> TypedLaunch:  # fmt: skip
    """Return the words of a launch, and what they mean. `limits`: of the whole run; `env`: of its job, by `--env`."""
    meant = {flag: getattr(request, name) for flag, name in OF_REQUEST.items()}
    meant |= {flag: getattr(limits, name) for flag, name in OF_LIMITS.items()}
    meant |= {flag: getattr(spec, flag) or default for flag, default in AS_TYPED.items()}
    meant["gpu"] = kinds_of(request)
    meant["all_configs"] = spec.all_configs
    said = {flag: getattr(spec, flag) for flag in meant}
    said["send_anyway"] = " ".join(spec.send_anyway)
    meant["send_anyway"] = of_checkout(spec.send_anyway)
    typed = {flag: "" if value is True else str(value) for flag, value in said.items() if value}
    if env:  # only the name of a secret is written down
        shown = sorted(name if is_secret(name) else f"{name}={value}" for name, value in env.items())
        meant["env"], typed["env"] = shown, " ".join(shown)
    return TypedLaunch(typed, json.loads(json.dumps(meant)), spec.run_name, vendors)


def kinds_of(request: Request) -> list[list[Any]]:
    """Return the kinds of GPU that are asked for, each with its number, as the journal keeps them."""
    return sorted([gpus.meant(kind).lower(), count] for kind, count in gpus.read_set(request.gpu))


def of_checkout(names: Sequence[str]) -> list[str]:
    """Return names of files with those in the checkout relative to it, as a copy of the checkout needs them."""
    paths = [Path(name).expanduser() for name in names]
    return [str(one.relative_to(ROOT)) if one.is_relative_to(ROOT) else str(one) for one in paths]


def with_limits(asked: str, ttl: str, spend_limit: str, limits: Limits) -> str:
    """Return the journal's record of a run that goes on with other limits."""
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
