"""Survey of the inventory: tests which machines are reachable and have the promised hardware."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from infra.errors import AuthError, SlipwayError, UsageError
from infra.machines.host_memory import OLDEST_PYTHON, HostMemory, ask, map_parallel
from infra.machines.inventory import Host
from infra.market import gpus
from infra.records import Offer, Request
from infra.transport.framing import shown
from infra.transport.host_keys import HostKeyMismatch
from infra.transport.private_keys import keys_of, why_ignored
from infra.transport.protocol import Transport, Unreachable

LOOK_S = 45.0
CONNECT_S = 20.0
TOLERANCE = 0.95  # firmware and ECC reserve a part of the nominal memory

Connect = Callable[[Host], Transport]


@dataclass(frozen=True)
class HostSurvey:
    """The result of a survey for a machine: a line of `inv pool.up`."""

    host: Host
    facts: Mapping[str, Any] = field(default_factory=dict)  # {} without an answer
    problem: str = ""  # reason why the machine is unusable, with advice
    shell_output: str = ""  # output of the login shell itself, which is ignored

    @property
    def verdict(self) -> str:
        """Return the problem, or "ok" with the login shell's output, if any."""
        return self.problem or "ok" + (f"; the login shell prints: {self.shell_output}" if self.shell_output else "")


@dataclass(frozen=True)
class HostHardware:
    """The hardware of a machine: from the inventory, else as observed. None: unknown."""

    gpu: str = ""
    num_gpus: int | None = None
    gpu_memory_bytes: int | None = None
    cpus: int | None = None
    memory_bytes: int | None = None


def survey_hosts(
    hosts: Sequence[Host], connect: Connect, memory: HostMemory, deadline_s: float = LOOK_S
) -> list[HostSurvey]:
    """Look at all machines in parallel and store the facts of each in `memory`."""
    looks = []
    for host, facts in zip(hosts, map_parallel(lambda host: _facts(host, connect), hosts, deadline_s), strict=True):
        if isinstance(facts, SlipwayError):
            looks.append(HostSurvey(host, problem=str(facts)))
            continue
        memory.save_facts(f"ssh:{host.place}", facts)
        looks.append(HostSurvey(host, facts, inventory_mismatch(host, facts), facts["shell_says"]))
    return looks


def reachable(hosts: Sequence[Host], connect: Connect, deadline_s: float = LOOK_S) -> list[HostSurvey]:
    """Check connections and key file permissions only."""
    answers = map_parallel(lambda host: contact(host, connect), hosts, deadline_s)
    return [
        HostSurvey(host, problem=str(answer))
        if isinstance(answer, SlipwayError)
        else HostSurvey(host, problem=_careless(host), shell_output=shown(answer.shell_banner))
        for host, answer in zip(hosts, answers, strict=True)
    ]


def contact(host: Host, connect: Connect) -> Transport:
    """Return a working connection. Raises Unreachable or HostKeyMismatch; in both cases the machine did nothing."""
    try:
        transport = connect(host)
        done = transport.run(["true"], timeout_s=CONNECT_S)
    except HostKeyMismatch:
        raise
    except SlipwayError as error:  # every error is harmless here: `true` has no effect
        raise Unreachable(_unreachable(host, error)) from None
    if done.exited != 0:
        said = f"`true` ended with exit code {done.exited}: {done.stderr.strip()}"
        raise Unreachable(_unreachable(host, SlipwayError(said)))
    return transport


def hardware_of(host: Host, facts: Mapping[str, Any]) -> HostHardware:
    gpus = facts.get("gpus") or ()
    sizes = [gpu["memory_bytes"] for gpu in gpus]
    seen = min(sizes) if sizes and None not in sizes else None
    return HostHardware(
        gpu=host.gpu or (gpus[0]["name"] if gpus else ""),
        num_gpus=host.num_gpus if host.num_gpus is not None else len(gpus) if "gpus" in facts else None,
        gpu_memory_bytes=host.gpu_memory_bytes or seen,
        cpus=facts.get("cpus"),
        memory_bytes=host.memory_bytes or facts.get("memory_bytes"),
    )


def inventory_mismatch(host: Host, facts: Mapping[str, Any]) -> str:
    """Return why a machine is unusable or below the inventory's promise; "" = no problem."""
    version = tuple(int(part) for part in re.findall(r"\d+", facts["python"])[:2])
    if version < OLDEST_PYTHON:
        return f"{facts['python_path']} is Python {facts['python']}; install 3.9 or newer, or set `python:`"
    if facts["gpu_problem"]:
        return f"the GPUs do not answer: {facts['gpu_problem']}"
    promised, seen = hardware_of(host, {}), hardware_of(Host(pool="", name="", address=host.address), facts)
    if (promised.num_gpus or 0) > (seen.num_gpus or 0):
        return f"the inventory promises {promised.num_gpus} GPUs, the machine has {seen.num_gpus}"
    if promised.gpu and promised.num_gpus and not same_gpu(promised.gpu, seen.gpu):
        return f"the inventory promises {promised.gpu}, the machine has {seen.gpu}"
    for what, key in (("memory", "memory_bytes"), ("GPU memory", "gpu_memory_bytes")):
        wanted, there = getattr(promised, key), getattr(seen, key)
        if wanted and there is not None and there < TOLERANCE * wanted:
            return f"the inventory promises {wanted / 1e9:.0f} GB {what}, the machine has {there / 1e9:.1f} GB"
    return ""


def request_mismatch(request: Request, what: HostHardware) -> str:
    """Return why a machine does not satisfy the request; "" = the machine satisfies the request."""
    number = what.num_gpus or 0
    if chosen_gpus(request, what.gpu, number) is None:
        wanted = gpus.read_set(request.gpu, request.num_gpus)
        is_kind = any(same_gpu(kind, what.gpu) for kind, _ in wanted)
        if is_kind or all(count > number for _, count in wanted):
            return f"the machine has {number or 'no'} GPUs"
        return f"the GPU is {what.gpu or 'none'}"
    if request.gpu_memory_bytes > (what.gpu_memory_bytes or 0):
        size = f"{what.gpu_memory_bytes / 1e9:.0f} GB" if what.gpu_memory_bytes else "of unknown size"
        return f"the GPU memory is {size}"
    return ""


def chosen_gpus(request: Request, name: str, number: int) -> tuple[str, int] | None:
    """Return the kind and count of the request that a machine with `number` GPUs called `name` satisfies.

    The largest count of several; ("", count) for any kind, a count of 0 for any number, None if nothing matches.
    """
    wanted = gpus.read_set(request.gpu, request.num_gpus) or (("", request.num_gpus),)
    fitting = [(kind, count) for kind, count in wanted if count <= number and (not kind or same_gpu(kind, name))]
    return max(fitting, key=lambda one: one[1], default=None)


def number_of_gpus(request: Request, offer: Offer) -> int:
    """Return the number of GPUs that a request takes of an own machine; 0 if the request leaves the number open."""
    found = chosen_gpus(request, offer.gpu, offer.num_gpus)
    return found[1] if found else 0


def same_gpu(asked: str, name: str) -> bool:
    """Return whether two names mean the same GPU.

    `RTX6000Ada` is `NVIDIA RTX 6000 Ada Generation`, and `A100-80GB` is `NVIDIA A100-SXM4-80GB`; a slice is never the
    whole GPU.
    """
    ours = gpus.name(name)
    if not name or gpus.is_known(ours) or gpus.is_slice(asked) != gpus.is_slice(name):
        return gpus.is_asked(asked, ours)
    # A name outside of the GPU table, such as `nvidia_a100_80gb_pcie` of a Slurm cluster.
    plain, theirs = (re.sub("[^a-z0-9]", "", word.lower()) for word in (asked, name))
    return plain in theirs or gpus.is_asked(asked, ours)


def _facts(host: Host, connect: Connect) -> dict[str, Any]:
    transport = contact(host, connect)
    facts = ask(transport, host.python, "facts")
    return {**facts, "shell_says": shown(transport.shell_banner)}


def _unreachable(host: Host, error: SlipwayError) -> str:
    to = host.address
    keys = " or ".join(map(str, keys_of(to)))
    advice = _careless(host) or _advice(host, error)
    said = f"cannot be reached as {to.user}@{to.host} port {to.port} with key {keys}: {error}"
    return f"{said}; {advice}" if advice and advice not in said else said


def _advice(host: Host, error: SlipwayError) -> str:
    """Return advice for an error: of this machine, of the way to the machine, of the login, or of a boot."""
    to, said = host.address, str(error).lower()
    if isinstance(error, UsageError):  # of this machine: the message ends with the next command
        return ""
    if isinstance(error, AuthError):
        words = ["ssh-copy-id", "-i", to.key, *(("-p", str(to.port)) if to.port != 22 else ())]
        words += ["-o", f"ProxyCommand={to.proxy.replace('%', '%%')}"] if to.proxy else []
        return (
            f"the machine answers, but refuses this user with this key: correct `user` ({to.user}) or "
            f"`identity_file` in the inventory, or install the key: "
            f"{shlex.join([*words, f'{to.user}@{to.host}'])}"
        )
    if "name or service not known" in said or "could not resolve" in said or "nodename nor servname" in said:
        where = "`ip` or ProxyJump" if to.proxy else "`ip`"
        return f"the host name cannot be resolved: correct {where} ({to.host}) in the inventory or ~/.ssh/config"
    if "proxy: " in said and "stdio forwarding failed" not in said:  # of `ssh -W`: the jump host works
        return f"the way to the machine fails: correct ProxyJump or ProxyCommand in ~/.ssh/config, and try: {to.proxy}"
    return "a newly rented machine takes 2 to 5 minutes to boot: try again"


def _careless(host: Host) -> str:
    """Return why no key of the machine can be used, "" = no problem: missing, unreadable, or readable by others."""
    reasons = [why_ignored(one) for one in keys_of(host.address)]
    return reasons[0] if all(reasons) else ""
