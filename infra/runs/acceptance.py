"""Acceptance of machines: examine the hardware and basic function before work, and remember bad machines.

    settings and a provider  ->  terms_for  ->  the `renting.Terms` of a launch
    examine(transport, request, thresholds)  ->  Report

The test runs in the first minute of a machine. A check with a failed measurement is `unknown`, and a postponed check is
`later`; neither rejects the machine. Missing hardware and measurements below a threshold reject the machine. The terms
also refuse pods over the spend cap.
"""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from infra.agent.limits import read_clocks
from infra.errors import UsageError
from infra.ledger import spend
from infra.ledger.op import Op
from infra.machines.host_memory import AGENT, HostMemory, ask, failure_key, run_script
from infra.machines.survey import TOLERANCE, chosen_gpus, same_gpu
from infra.market import gpus
from infra.providers import Provider, is_examined
from infra.records import Offer, Request
from infra.runs.renting import Accept, Terms
from infra.settings import Settings
from infra.transport.protocol import Transport
from infra.units import micro_usd

SLACK_S = 15.0
FOLDER = "~/.slipway"
LEAST_DOWNLOAD_BYTES = 1 << 20  # smaller downloads measure latency, not bandwidth


def terms_for(settings: Settings, vendor: Provider, unchecked: bool = False) -> Terms:
    """Return the terms for machines of this vendor; `unchecked` skips the examination of machines."""
    accept = _accept(settings) if is_examined(vendor) and not unchecked else None
    if not vendor.is_rented:
        return Terms(accept=accept)
    of_all = micro_usd(str(settings.spend_cap_usd)) or None

    def admit(rows: list[Op], new: Op) -> None:
        spend.admit(rows, new, of_all=of_all, now=read_clocks(), scale=settings.clock_scale)

    def blame(offer: Offer, failure: str) -> None:
        HostMemory.for_journal(settings.state_file).record_failure(failure_key(offer), failure)

    return Terms(accept=accept, admit=admit, on_rejected=blame, boot_s=settings.boot_s)


def _accept(settings: Settings) -> Accept:
    """Return the acceptance check of a machine. A failed inventory machine is remembered and not offered again."""

    def why_refused(transport: Transport, request: Request, offer: Offer) -> str:
        promised = request
        if offer.num_gpus and not offer.place:  # For rented machines: the kind and size named by the vendor.
            kind = request.gpu if len(gpus.read_set(request.gpu)) == 1 else offer.gpu
            promised = replace(
                request, num_gpus=offer.num_gpus, gpu=kind.partition(":")[0], gpu_memory_bytes=offer.gpu_memory_bytes
            )
        report = examine(transport, promised, Thresholds.from_settings(settings), python=transport.python)
        if offer.place and not report.is_accepted:
            HostMemory.for_journal(settings.state_file).record_failure(failure_key(offer), report.failure)
        return report.failure

    return why_refused


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Minimum values for a machine, and the time limit of each check."""

    cuda: str = "13.0"
    """CUDA version of the pinned torch build; a driver serves every CUDA with the driver's major version."""
    disk_write_bytes_per_s: float = 50e6
    free_bytes: float = 10e9
    clock_offset_s: float = 30.0
    """Largest clock offset; certificates and signed requests fail beyond a few minutes."""
    url: str = ""
    """URL of a test download of a few seconds; "" = no download."""
    download_bytes_per_s: float = 2e6
    disk_s: float = 6.0
    download_s: float = 10.0
    matmul_s: float = 60.0
    """Includes the import of torch from a cold disk."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+(\.\d+)?", self.cuda):
            raise UsageError(f"SLIPWAY_ACCEPT_CUDA is {self.cuda!r}; expected a version such as 13.0")

    @staticmethod
    def from_settings(settings: Settings) -> "Thresholds":
        return Thresholds(
            cuda=settings.accept_cuda,
            disk_write_bytes_per_s=settings.accept_disk_mb_s * 1e6,
            free_bytes=settings.accept_free_gb * 1e9,
            clock_offset_s=settings.accept_clock_s,
            url=settings.accept_url,
            download_bytes_per_s=settings.accept_download_mb_s * 1e6,
        )


@dataclass(frozen=True)
class Check:
    name: str
    state: str  # "ok", "bad", "unknown", "later"
    detail: str


@dataclass(frozen=True)
class Report:
    checks: tuple[Check, ...]

    @property
    def is_accepted(self) -> bool:
        return not self.failure

    @property
    def failure(self) -> str:
        """Return all failed checks as text; "" = no check failed."""
        return "; ".join(f"{one.name}: {one.detail}" for one in self.checks if one.state == "bad")


def examine(
    transport: Transport,
    request: Request,
    thresholds: Thresholds,
    *,
    python: str = "python3",
    folder: str = FOLDER,
    pythons: tuple[str, ...] = (),
) -> Report:
    """Examine the machine behind `transport`; `pythons` are remote interpreters, possibly with torch.

    Raises SlipwayError when the machine does not answer.
    """
    facts = ask(transport, python, "facts")
    limits_s = {"disk_s": thresholds.disk_s, "download_s": thresholds.download_s, "matmul_s": thresholds.matmul_s}
    config = {"folder": folder, "gpus": _wants_gpus(request), "pythons": pythons, "url": thresholds.url, **limits_s}
    script = (AGENT / "examine.py").read_bytes()
    asked_at = time.time()
    seen = run_script(transport, python, script, json.dumps(config), timeout_s=max(limits_s.values()) + SLACK_S)
    return judge(facts, seen, (asked_at, time.time()), request, thresholds)


def judge(
    facts: Mapping[str, Any], seen: Mapping[str, Any], asked: tuple[float, float], request: Request, least: Thresholds
) -> Report:
    """Build the report from the answers of `host.py` and `examine.py`; `asked` holds local start and end times."""
    names = [gpu["name"] for gpu in facts["gpus"]]
    # The machine has one kind of a set.
    if names and (found := chosen_gpus(request, names[0], len(names))):
        request = replace(request, gpu=found[0], num_gpus=found[1])
    checks = [
        *(_gpus(facts, request), _driver(facts, seen["cuda"], request, least), _matmul(seen["matmul"], request)),
        _least("disk write", seen["disk_write"], least.disk_write_bytes_per_s, 1e6, "MB/s"),
        _least("free disk", seen["free"], least.free_bytes, 1e9, "GB"),
        _clock(seen, asked, least),
        _download(seen["download"], least),
        _sandbox(seen["sandbox"], request),
    ]
    return Report(tuple(checks))


def _wants_gpus(request: Request) -> bool:
    return bool(request.num_gpus or request.gpu or request.gpu_memory_bytes)


def _gpus(facts: Mapping[str, Any], request: Request) -> Check:
    """Check the number, kind and memory size of the GPUs against the request."""
    gpus = facts["gpus"]
    there = f"{len(gpus)} x {gpus[0]['name']}" if gpus else "none"
    if not _wants_gpus(request):
        return Check("GPUs", "ok", f"no GPU was requested; found: {there}")
    if facts["gpu_problem"]:
        return Check("GPUs", "bad", facts["gpu_problem"])
    if len(gpus) < max(1, request.num_gpus):
        return Check("GPUs", "bad", f"{max(1, request.num_gpus)} promised, {len(gpus)} found")
    odd = [gpu["name"] for gpu in gpus if not same_gpu(request.gpu, gpu["name"])]
    if request.gpu and odd:
        return Check("GPUs", "bad", f"{request.gpu} promised, {odd[0]} found")
    sizes = [gpu["memory_bytes"] for gpu in gpus]
    if not request.gpu_memory_bytes:
        return Check("GPUs", "ok", there)
    if None in sizes:
        return Check("GPUs", "unknown", f"{there}; the memory size is not reported")
    size = f"{min(sizes) / 1e9:.0f} GB each"
    if min(sizes) < TOLERANCE * request.gpu_memory_bytes:
        return Check("GPUs", "bad", f"{request.gpu_memory_bytes / 1e9:.0f} GB promised, {size} found")
    return Check("GPUs", "ok", f"{there}, {size}")


def _sandbox(seen: Mapping[str, Any], request: Request) -> Check:
    if not request.sandbox:
        return Check("sandbox", "ok", "not needed")
    if "value" not in seen:
        return _silent("sandbox", seen)
    lacking = "neither Landlock (Linux 5.13) nor bubblewrap can confine the code of answers on this machine"
    return Check("sandbox", "ok" if seen["value"] else "bad", seen["value"] or lacking)


def _driver(facts: Mapping[str, Any], cuda: Mapping[str, Any], request: Request, least: Thresholds) -> Check:
    if not _wants_gpus(request):
        return Check("driver", "ok", "not needed")
    if "value" not in cuda:
        return _silent("driver", cuda)
    drivers = ", ".join(sorted({gpu["driver"] for gpu in facts["gpus"]}))
    said = f"{drivers} supports CUDA {cuda['value']}, torch needs {least.cuda}"
    is_enough = int(cuda["value"].split(".")[0]) >= int(least.cuda.split(".")[0])
    return Check("driver", "ok" if is_enough else "bad", said)


def _matmul(matmul: Mapping[str, Any], request: Request) -> Check:
    """Check the matrix products: reject a GPU with a wrong product or without any result."""
    if not _wants_gpus(request):
        return Check("matmul", "ok", "no GPU was requested")
    if "error" in matmul:
        return Check("matmul", "bad", matmul["error"])
    if "value" not in matmul:
        return _silent("matmul", matmul)
    rows = matmul["value"]
    speeds = ", ".join(f"{row['tflops']:g}" for row in rows) or "nothing"
    if len(rows) < max(1, request.num_gpus):
        return Check("matmul", "bad", f"torch sees {len(rows)} GPUs")
    wrong = [str(index) for index, row in enumerate(rows) if not row["exact"]]
    if wrong:
        return Check("matmul", "bad", f"GPU {', '.join(wrong)} gave a wrong product")
    return Check("matmul", "ok", f"{speeds} TFLOP/s in bfloat16")


def _clock(seen: Mapping[str, Any], asked: tuple[float, float], least: Thresholds) -> Check:
    """Check the clock of the machine.

    The true offset lies between two bounds: the first assumes an instant request, the second an instant answer.
    """
    earliest, latest = seen["ended_at"] - asked[1], seen["began_at"] - asked[0]
    offset_s, unsure_s = (earliest + latest) / 2, abs(latest - earliest) / 2
    detail = f"{offset_s:+.1f} s off, give or take {unsure_s:.1f} s"
    if abs(offset_s) - unsure_s > least.clock_offset_s:
        return Check("clock", "bad", f"{detail}; the maximum is {least.clock_offset_s:g} s")
    return Check("clock", "ok" if abs(offset_s) + unsure_s <= least.clock_offset_s else "unknown", detail)


def _download(download: Mapping[str, Any], least: Thresholds) -> Check:
    if download.get("bytes", LEAST_DOWNLOAD_BYTES) < LEAST_DOWNLOAD_BYTES:
        return Check(
            "download",
            "unknown",
            f"{least.url} has only {download['bytes']} bytes; set SLIPWAY_ACCEPT_URL to a larger file",
        )
    return _least("download", download, least.download_bytes_per_s, 1e6, "MB/s")


def _least(name: str, answer: Mapping[str, Any], wanted: float, unit: float, words: str) -> Check:
    if "value" not in answer:
        return _silent(name, answer)
    detail = f"{answer['value'] / unit:.1f} {words}"
    if answer["value"] < wanted:
        return Check(name, "bad", f"{detail}; {wanted / unit:g} {words} are wanted")
    return Check(name, "ok", detail)


def _silent(name: str, answer: Mapping[str, Any]) -> Check:
    return Check(name, "later", answer["later"]) if "later" in answer else Check(name, "unknown", answer["error"])
