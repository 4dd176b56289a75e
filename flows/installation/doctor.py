"""Facts shown by `inv doctor`: the parts of the local installation needed by Slipway. Read-only."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.installation import first_keys
from flows.runs import work_kinds
from flows.runs.work_kinds import FileFinding
from flows.specs import foreign_files
from infra.agent.environments import environment, packages
from infra.errors import SlipwayError, UsageError
from infra.ledger.timings import Timings
from infra.providers import list_pods
from infra.settings import VENDORS, Settings, unlikely
from infra.units import count, in_usd, per_hour
from store import credentials, extensions, packs
from store.artifacts.artifacts import Store
from store.manifest import StoreError

if TYPE_CHECKING:
    from infra.machines.survey import HostSurvey
    from infra.transport.large_files import TransferMethod

DASHBOARDS = {
    "runpod": "https://console.runpod.io/pods",
    "lium": "https://lium.io/pods",
    "shadeform": "https://platform.shadeform.ai/instances",
}
MOST_NAMED = 5
TRAIN_BYTES = 3 << 30  # The train environment, the downloads for it, and a first run.


@dataclass(frozen=True)
class DoctorLine:
    """One line of `inv doctor`."""

    name: str
    state: str  # "ok", "off" (missing but optional), "warn" (of a file), "bad" (local runs impossible, or refused)
    detail: str


def findings(root: Path, settings: Settings) -> list[DoctorLine]:
    """Return all facts that decide which runs the checkout `root` can start."""
    tools = [
        _tool("git", ("--version",), "bad", "selects the files to send to a pod"),
        _tool(
            "ssh",
            ("-V",),
            "off",
            "required for inv ssh to other machines and for aliases of ~/.ssh/config (apt install openssh-client)",
        ),
        _rsync(),
        _tool("sshd", ("-V",), "off", "required for tests (apt install openssh-server)"),
    ]
    rented = (_vendor(name, settings) for name in VENDORS)
    of_packs = [packs.load(where)(root, settings) for where in packs.entries("doctor_checks").values()]
    providers = [DoctorLine("local", "ok", "this machine"), _pools(settings), *rented, *of_packs]
    here = [_python(), *_installers(), *tools, _disk(root, settings), _gpu(), _train(root, settings)]
    return [
        *here,
        *tracking(settings),
        *_store(settings),
        *_uploads(settings),
        *_timings(settings),
        *providers,
        *_extensions(settings),
    ]


def _extensions(settings: Settings) -> list[DoctorLine]:
    """Report the additions of each extension; the extension files are parsed but not run."""
    found = []
    for word in extensions.words_of(settings.extensions):
        try:
            one = extensions.read(word)
            said = f"adds {', '.join(one.adds)}: {one.where}" if one.adds else extensions.adds_nothing(one)
            found.append(DoctorLine(one.name, "ok" if one.adds else "off", said))
        except extensions.ExtensionError as error:
            found.append(DoctorLine(extensions.name_of(word), "off", str(error)))
    return found


def _timings(settings: Settings) -> list[DoctorLine]:
    """Report the number of recorded timings for estimates, and unreadable records; [] without records."""
    timings = Timings.for_journal(settings.state_file)
    problems, runs = list(timings.problems()), len(timings.tokens())
    if not runs:
        return []
    if not problems:
        return [DoctorLine("estimates", "ok", f"learned from {count(runs, 'run')}, in {timings.folder}")]
    more = f"; and {len(problems) - 1} more" if len(problems) > 1 else ""
    words = f"{count(len(problems), 'record')} of {runs} cannot be read, and {'are' if problems[1:] else 'is'} left out"
    return [
        DoctorLine("estimates", "off", f"{words}: {problems[0]}{more}; remove the damaged records in {timings.folder}")
    ]


def tracking(settings: Settings) -> list[DoctorLine]:
    """Report the trackers of a training; [] without trackers. Raises UsageError."""
    from flows.planning.extensions import requested_trackers, tracker_notes

    names = requested_trackers("", settings)
    if not names:
        return []
    why = "SLIPWAY_TRACK" if settings.track else "the tracker's own variables"
    return [DoctorLine("tracking", "ok", "; ".join((f"{', '.join(names)} by {why}", *tracker_notes(names, settings))))]


def nodes(settings: Settings) -> list[DoctorLine]:
    """Ask every machine of the inventory in parallel; return the state and hardware of each machine.

    Raises UsageError without an inventory.
    """
    from infra.machines import inventory, survey
    from infra.machines.host_memory import HostMemory, map_parallel
    from infra.providers.ssh import connections
    from infra.transport import large_files

    connect, own = connections(settings), inventory.load(settings.pools)
    looks = survey.survey_hosts(own.hosts, connect, HostMemory.for_journal(settings.state_file))
    there = [one.host for one in looks if one.facts]
    ways = dict(
        zip(
            there,
            map_parallel(lambda host: large_files.transfer_method(connect(host)), there, survey.LOOK_S),
            strict=True,
        )
    )
    lines = [
        DoctorLine(f"ssh {one.host.place}", "bad" if one.problem else "ok", _node(one, ways.get(one.host)))
        for one in looks
    ]
    return [*lines, *(DoctorLine(f"ssh {one.place}", "bad", one.why) for one in own.unusable)]


def _pools(settings: Settings) -> DoctorLine:
    from infra.machines import inventory

    return of_inventory("ssh pools", "ssh", lambda: count(len(inventory.load(settings.pools).hosts), "machine"))


def of_inventory(name: str, provider: str, held: Callable[[], str]) -> DoctorLine:
    """Return the line of an inventory. `held` returns a count of machines as text and may raise UsageError."""
    try:
        return DoctorLine(name, "ok", f"enabled: {held()}; to check the machines: inv doctor --provider {provider}")
    except UsageError as error:
        return DoctorLine(name, "off", f"disabled: {error}")


def _node(look: "HostSurvey", way: "TransferMethod | SlipwayError | None") -> str:
    from infra.transport.large_files import TransferMethod

    if not look.facts:
        return look.problem
    gpus = [gpu["name"] for gpu in look.facts["gpus"]]
    memory = look.facts["memory_bytes"]
    has = [
        f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU",
        f"{look.facts['cpus']} CPUs",
        f"{memory / 1e9:.0f} GB memory" if memory else "memory unknown",
        f"{look.facts['free_bytes'] / 1e9:.0f} GB disk free",
        f"Python {look.facts['python']}",
        f"large files {'by rsync' if way.program else 'in pieces'} ({way.why})"
        if isinstance(way, TransferMethod)
        else f"{way}",
    ]
    has += [f"the shell prints: {look.shell_output}"] if look.shell_output else []
    return f"{look.problem}; {', '.join(has)}" if look.problem else f"reachable: {', '.join(has)}"


def _python() -> DoctorLine:
    system = os.uname()
    about = f"{sys.version.split()[0]} at {sys.executable}, {system.sysname} {system.release} {system.machine}"
    return DoctorLine("python", "ok", about)


def _installers() -> list[DoctorLine]:
    uv = Path(sys.prefix, "bin", "uv")
    found = str(uv) if uv.exists() else shutil.which("uv")
    venv = importlib.util.find_spec("ensurepip") is not None
    honored = sorted(packages.pip_settings())  # Only names: an address may contain a password.
    return [
        DoctorLine("uv", "ok" if found else "off", found or "downloaded as a wheel on first use"),
        DoctorLine(
            "venv",
            "ok" if venv else "off" if found else "bad",
            "with ensurepip" if venv else "apt install python3-venv",
        ),
        DoctorLine(
            "pip", "ok", f"its settings are honored: {', '.join(honored)}" if honored else "nothing is configured"
        ),
    ]


def _tool(name: str, version: tuple[str, ...], absent: str, purpose: str) -> DoctorLine:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if not path:
        return DoctorLine(name, absent, f"not found; {purpose}")
    done = subprocess.run([path, *version], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = (done.stdout or done.stderr).strip().splitlines()
    return DoctorLine(name, "ok", f"{path}{': ' + said[0] if said else ''}")


def _rsync() -> DoctorLine:
    """Report if large files can use rsync, and the alternative; `nodes` asks each remote machine."""
    from infra.transport import rsync

    found = _tool("rsync", ("--version",), "off", "code and files are sent without rsync")
    if rsync.local_version() is None:
        return replace(
            found,
            state="off",
            detail=(
                f"{found.detail}; over SSH, files above 32 MB are compared in pieces of 32 MB, and changed pieces "
                "are sent. Tests also need rsync (apt install rsync)"
            ),
        )
    why = (
        "over SSH, rsync sends files above 32 MB if the other machine has rsync; otherwise Slipway sends pieces of "
        "32 MB"
    )
    return replace(found, detail=f"{found.detail}; {why}")


def _disk(root: Path, settings: Settings) -> DoctorLine:
    free = shutil.disk_usage(root).free
    need = settings.reserve_bytes + (0 if _made(root, settings) else TRAIN_BYTES)
    state = "ok" if free >= need else "bad"
    return DoctorLine("disk", state, f"{free / 1e9:.1f} GB free in {root}; {need / 1e9:.1f} GB are needed")


def _gpu() -> DoctorLine:
    path = shutil.which("nvidia-smi")
    done = path and subprocess.run([path, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not done or done.returncode:
        return DoctorLine("gpu", "off", "no NVIDIA GPU is visible; torch comes as its CPU build")
    return DoctorLine("gpu", "ok", "; ".join(line.partition(" (UUID")[0] for line in done.stdout.splitlines()))


def _train(root: Path, settings: Settings) -> DoctorLine:
    made = _made(root, settings)
    return DoctorLine("environment", "ok" if made else "off", str(made) if made else "train: built on first use")


def _made(root: Path, settings: Settings) -> Path | None:
    return environment.find("train", root, settings.environments, environment.torch_build())


def _store(settings: Settings) -> list[DoctorLine]:
    """Report the hub token in use, and the result of a write test of the store; the test leaves no data."""
    tokens = [name for name in credentials.HUB if getattr(settings, name.lower())]
    credentials.set_credentials({name: getattr(settings, name.lower()) for name in credentials.EVERY})
    found = []
    if tokens or credentials.kind(settings.store) == "hf":
        used = f"{tokens[0]} from {settings.sources[tokens[0].lower()]}" if tokens else "neither is set"
        more = f"; {tokens[1]} is also set, but not used" if len(tokens) > 1 else ""
        found.append(DoctorLine("hub token", "ok" if tokens else "off", f"{used}{more}"))
    try:
        store = Store(settings.store)
        store.check_writable()
        return [
            *found,
            DoctorLine("store", "ok", f"{settings.store} can be written, {len(store.artifacts())} artifacts"),
        ]
    except StoreError as error:
        return [*found, DoctorLine("store", "bad", " ".join(str(error).split()))]


def _uploads(settings: Settings) -> list[DoctorLine]:
    """Report the uploads of the last run with a local uploader log; [] without such a log."""
    logs = sorted(settings.homes.glob("*/pod/logs/carry.log"), key=lambda one: one.stat().st_mtime)
    said = (
        [line for line in logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if line] if logs else []
    )
    if not said:
        return []
    is_well = not any(words in said[-1] for words in (" not carried, ", " not in the store: ", "uploader: "))
    words = "".join(one for one in said[-1] if one.isprintable())
    return [DoctorLine("uploads", "ok" if is_well else "off", f"{logs[-1].parents[2].name}: {words}")]


def lint(path: str, provider: str = "") -> list[DoctorLine]:
    """Report the lines of a job file that a launch refuses (bad), or that fail later (warn).

    Raises UsageError for an unreadable file.
    """
    try:
        found = file_findings(Path(path), provider)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    told = [DoctorLine(f"{path}:{one.line}", "bad" if one.is_refused else "warn", one.text) for one in found]
    return told or [DoctorLine(path, "ok", "nothing to mend")]


def file_findings(path: Path, provider: str) -> list[FileFinding]:
    """Return the findings of a file of any kind. Raises UsageError for other files; OSError."""
    if missing := [why for word in packs.words("works") if (why := packs.missing_pack_message("works", word))]:
        raise UsageError(missing[0])
    if foreign := foreign_files.about(path):
        return [FileFinding(1, foreign)]
    kind = work_kinds.of_file(path)
    kinds = [kind] if kind else [packs.load(entry.where)() for entry in packs.works()]
    return [one for each in kinds for one in each.findings(path, provider)]


def _vendor(name: str, settings: Settings) -> DoctorLine:
    key = VENDORS[name]
    if getattr(settings, key):
        why = f"; the value is unlikely to be a key: {said}" if (said := unlikely(getattr(settings, key))) else ""
        return DoctorLine(name, "ok", f"enabled: {key.upper()} from {settings.sources[key]}{why}")
    saved = first_keys.saved(name)[1]
    then = f"; {saved} holds a key; to use the key: inv init {name}" if saved else ""
    return DoctorLine(name, "off", f"disabled: {key.upper()} is not set{then}")


def account(name: str, settings: Settings) -> list[DoctorLine]:
    """Report a vendor's answer to our key (owner, balance, machines), and the address of the vendor's dashboard."""
    from infra.providers.by_name import open_market

    found = [DoctorLine("dashboard", "ok", DASHBOARDS[name])]
    key = _vendor(name, settings)
    if not getattr(settings, VENDORS[name]):
        return [replace(key, state="bad"), *found]
    try:
        market = open_market(name, settings)
        mine = market.account()
        left = "an unknown balance"
        if mine.balance_micro_usd is not None:
            left = f"a balance of {in_usd(mine.balance_micro_usd)}"
        found.append(DoctorLine("account", "ok", f"{mine.display_owner}, with {left}"))
        pods = list_pods(market, spot=False)
        rate = sum(pod.micro_usd_per_hour for pod in pods)
        there = ", ".join(f"{pod.pod_id} ({pod.state})" for pod in pods[:MOST_NAMED])
        more = f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
        said = f"{len(pods)} at {per_hour(rate)}: {there}{more}" if pods else "none"
        found.append(DoctorLine("machines", "ok", said))
    except SlipwayError as error:
        found.append(DoctorLine("account", "bad", " ".join(str(error).split())))
    return [key, *found]
