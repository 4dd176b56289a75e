"""What this machine has of what we need: facts for `inv doctor`, changing nothing."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from infra.agent import environment, packages
from infra.errors import SlipwayError
from infra.money import dollars, in_usd
from infra.settings import VENDORS, Settings
from store import Store, StoreError, credentials

if TYPE_CHECKING:
    from infra.machines.survey import Look
    from infra.transport.large_files import Way

DASHBOARDS = {
    "runpod": "https://console.runpod.io/pods",
    "lium": "https://lium.io/pods",
    "shadeform": "https://platform.shadeform.ai/instances",
}
MOST_NAMED = 5
TRAIN_BYTES = 3 << 30  # the train environment, what is downloaded for it, and a first run


@dataclass(frozen=True)
class Finding:
    """One line of `inv doctor`."""

    name: str
    state: str  # "ok", "off" (not there, and local runs without it), "bad" (local cannot run)
    detail: str


def findings(root: Path, settings: Settings) -> list[Finding]:
    """Everything that decides what can run from the checkout `root`."""
    tools = [
        _tool("git", ("--version",), "bad", "finds the files that are sent to a pod"),
        _tool(
            "ssh",
            ("-V",),
            "off",
            "inv ssh on other machines and aliases of ~/.ssh/config need it (apt install openssh-client)",
        ),
        _rsync(),
        _tool("sshd", ("-V",), "off", "tests need it (apt install openssh-server)"),
    ]
    providers = [Finding("local", "ok", "this machine"), *(_vendor(name, settings) for name in VENDORS)]
    here = [_python(), *_installers(), *tools, _disk(root, settings), _gpu(), _train(root, settings)]
    return [*here, *tracking(root, settings), *_store(settings), *_uploads(settings), *providers]


def tracking(root: Path, settings: Settings) -> list[Finding]:
    """Whether a training of the checkout `root` can tell its figures to W&B; nothing where nobody asks for that."""
    asked = [name for name in ("wandb_api_key", "wandb_project", "wandb_mode") if getattr(settings, name)]
    if not asked or settings.wandb_mode == "disabled":
        return []
    why = f"{asked[0].upper()} from {settings.sources[asked[0]]}"
    group = environment.read_group((root / "pyproject.toml").read_text(encoding="utf-8"), "train")
    if any(re.match(r"wandb(?![\w.-])", one) for one in group):
        return [Finding("W&B", "ok", why)]
    what = 'the train environment lacks it: add a line "wandb", to the group train of pyproject.toml'
    return [Finding("W&B", "off", f"asked for by {why}, and left out: {what}")]


def nodes(settings: Settings) -> list[Finding]:
    """Every machine of the inventory, asked at the same time: whether it can be used, and what it has.

    Raises UsageError when there is no inventory.
    """
    from infra.machines import inventory, survey
    from infra.machines.host_memory import HostMemory, at_once
    from infra.providers.ssh import connections
    from infra.transport import large_files

    connect = connections(settings)
    looks = survey.look(inventory.load(settings.pools), connect, HostMemory.beside(settings.state_file))
    there = [one.host for one in looks if one.facts]
    ways = dict(zip(there, at_once(lambda host: large_files.way(connect(host)), there, survey.LOOK_S), strict=True))
    return [
        Finding(f"ssh {one.host.place}", "bad" if one.problem else "ok", _node(one, ways.get(one.host)))
        for one in looks
    ]


def _node(look: "Look", way: "Way | SlipwayError | None") -> str:
    from infra.transport.large_files import Way

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
        f"large files {'by rsync' if way.program else 'in pieces'} ({way.why})" if isinstance(way, Way) else f"{way}",
    ]
    return f"{look.problem}; {', '.join(has)}" if look.problem else f"reachable: {', '.join(has)}"


def flops_per_s() -> float:
    """Useful work that training gets out of this machine, roughly: what estimates stand on.

    Measured with whole runs of the smoke profile on two cores: 0.6e11 a core with bf16 matrix units, half without.
    """
    if environment.torch_build() == "cuda":
        return 1e14
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text(errors="replace") if cpuinfo.exists() else ""
    return cores * (0.6e11 if "amx_bf16" in flags or "avx512_bf16" in flags else 0.3e11)


def _python() -> Finding:
    system = os.uname()
    about = f"{sys.version.split()[0]} at {sys.executable}, {system.sysname} {system.release} {system.machine}"
    return Finding("python", "ok", about)


def _installers() -> list[Finding]:
    uv = Path(sys.prefix, "bin", "uv")
    found = str(uv) if uv.exists() else shutil.which("uv")
    venv = importlib.util.find_spec("ensurepip") is not None
    honoured = sorted(packages.pip_settings())  # the names only: an address may hold a password
    return [
        Finding("uv", "ok" if found else "off", found or "fetched from its wheel when it is needed"),
        Finding(
            "venv",
            "ok" if venv else "off" if found else "bad",
            "with ensurepip" if venv else "apt install python3-venv",
        ),
        Finding(
            "pip", "ok", f"its settings are honoured: {', '.join(honoured)}" if honoured else "nothing is configured"
        ),
    ]


def _tool(name: str, version: tuple[str, ...], absent: str, purpose: str) -> Finding:
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if not path:
        return Finding(name, absent, f"not found; {purpose}")
    done = subprocess.run([path, *version], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = (done.stdout or done.stderr).strip().splitlines()
    return Finding(name, "ok", f"{path}{': ' + said[0] if said else ''}")


def _rsync() -> Finding:
    """Whether large files go by rsync, and why not; to a machine of one's own see `nodes`."""
    from infra.transport import rsync

    found = _tool("rsync", ("--version",), "off", "code and files are sent without it")
    if rsync.here() is None:
        return replace(found, state="off", detail=f"{found.detail}; over SSH, files above 32 MB go in pieces of 32 MB, "
                       "and those that differ are sent; tests need it, too (apt install rsync)")  # fmt: skip
    why = "over SSH, files above 32 MB go by it where the other machine has it, else in pieces of 32 MB"
    return replace(found, detail=f"{found.detail}; {why}")


def _disk(root: Path, settings: Settings) -> Finding:
    free = shutil.disk_usage(root).free
    need = settings.reserve_bytes + (0 if _made(root, settings) else TRAIN_BYTES)
    state = "ok" if free >= need else "bad"
    return Finding("disk", state, f"{free / 1e9:.1f} GB free in {root}; {need / 1e9:.1f} GB are needed")


def _gpu() -> Finding:
    path = shutil.which("nvidia-smi")
    done = path and subprocess.run([path, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not done or done.returncode:
        return Finding("gpu", "off", "no NVIDIA GPU is visible; torch comes as its CPU build")
    return Finding("gpu", "ok", "; ".join(line.partition(" (UUID")[0] for line in done.stdout.splitlines()))


def _train(root: Path, settings: Settings) -> Finding:
    made = _made(root, settings)
    return Finding("environment", "ok" if made else "off", str(made) if made else "train: made when it is first needed")


def _made(root: Path, settings: Settings) -> Path | None:
    return environment.find("train", root, settings.environments, environment.torch_build())


def _store(settings: Settings) -> list[Finding]:
    """Which token the hub is asked with, and whether the store is there and can be written; nothing is left in it."""
    tokens = [name for name in credentials.HUB if getattr(settings, name.lower())]
    credentials.lend({name: getattr(settings, name.lower()) for name in (*credentials.HUB, *credentials.S3)})
    found = []
    if tokens or credentials.kind(settings.store) == "hf":
        used = f"{tokens[0]} from {settings.sources[tokens[0].lower()]}" if tokens else "neither is set"
        more = f"; {tokens[1]} is set too, and not used" if len(tokens) > 1 else ""
        found.append(Finding("hub token", "ok" if tokens else "off", f"{used}{more}"))
    try:
        store = Store(settings.store)
        store.check_writable()
        return [*found, Finding("store", "ok", f"{settings.store} can be written, {len(store.artifacts())} artifacts")]
    except StoreError as error:
        return [*found, Finding("store", "bad", " ".join(str(error).split()))]


def _uploads(settings: Settings) -> list[Finding]:
    """How the last run whose courier's log is here fared with the store; nothing where none went to one."""
    logs = sorted((settings.pods.parent / "logs").glob("*/carry.log"), key=lambda one: one.stat().st_mtime)
    said = (
        [line for line in logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if line] if logs else []
    )
    if not said:
        return []
    is_well = not any(words in said[-1] for words in (" not carried, ", " not in the store: ", "courier: "))
    words = "".join(one for one in said[-1] if one.isprintable())
    return [Finding("uploads", "ok" if is_well else "off", f"{logs[-1].parent.name}: {words}")]


def _vendor(name: str, settings: Settings) -> Finding:
    key = VENDORS[name]
    if getattr(settings, key):
        return Finding(name, "ok", f"enabled: {key.upper()} from {settings.sources[key]}")
    return Finding(name, "off", f"disabled: {key.upper()} is not set")


def account(name: str, settings: Settings) -> list[Finding]:
    """What a vendor says to our key: whose it is, what is left, what runs; and where people look at it themselves."""
    from infra.providers.offers import open_market

    found = [Finding("dashboard", "ok", DASHBOARDS[name])]
    key = _vendor(name, settings)
    if not getattr(settings, VENDORS[name]):
        return [replace(key, state="bad"), *found]
    try:
        market = open_market(name, settings)
        mine = market.account()
        left = "a balance that it does not tell"
        if mine.balance_micro_usd is not None:
            left = f"a balance of {in_usd(mine.balance_micro_usd)}"
        found.append(Finding("account", "ok", f"{mine.owner}, with {left}"))
        pods = market.list()
        rate = sum(pod.micro_usd_per_hour for pod in pods)
        there = ", ".join(f"{pod.pod_id} ({pod.state})" for pod in pods[:MOST_NAMED])
        more = f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
        said = f"{len(pods)} at {dollars(rate)} USD/h: {there}{more}" if pods else "none"
        found.append(Finding("machines", "ok", said))
    except SlipwayError as error:
        found.append(Finding("account", "bad", " ".join(str(error).split())))
    return [key, *found]
