"""The armed ends of a pod, per vendor: the part of a plan about shutdown, shown before a pod is rented. Pure."""

import math
from dataclasses import dataclass

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.providers import Abilities
from infra.units import duration, in_usd
from store import packs

HANGS = "the machine hangs"
TAKEN = "the machine is taken away or fails"
WORK_OVER = "the work is over"


SELF_DELETE = "self-delete by "  # start of the drill's clause on each self-delete request of a pod
WAYS = 2  # self-delete requests: by REST v2 and by GraphQL
NOTHING = "nothing: the pod bills until inv runs"


@dataclass(frozen=True)
class End:
    """A way for a pod to end, and the acting part; `backstop` holds when no `inv` command runs."""

    what: str
    by: str
    backstop: str


def ends_of(
    name: str, can: Abilities, limits: Limits, on_failure: str, stays: bool = False, self_end: bool = False
) -> list[End]:
    """Return the ends of a pod at the vendor `name`. `can`: the abilities at the API of the offer.

    `limits`: limits of the pod, with the price. `stays`: the pod outlives the work. `self_end`: the guard gets a key to
    end the pod, if the pod has no key of its own.
    """
    limit_s = hard_limit_s(limits)
    timer = NOTHING
    if limit_s is not None and can.start_timer:
        timer = f"the dead-man timer in the container after {duration(limit_s)}"
    if limit_s is not None and can.time_limit:
        timer = f"{name}'s own timer after {duration(math.ceil(limit_s / can.time_grain_s) * can.time_grain_s)}"
    if limits.time_s is None and limits.spend_micro_usd is not None and can.spend_limit:
        timer = f"{name}'s own limit of {in_usd(limits.spend_micro_usd)}"
    is_gone = can.self_terminate == "pod_credential" or self_end
    is_engine = can.self_terminate == "engine"
    if is_engine:
        timer = f"{name}'s controller, once the guard has stopped work"
    outside = timer if can.time_limit or can.spend_limit or is_engine else NOTHING
    at_limit = (
        "the pod's guard saves, stops work and deletes the pod" if is_gone else "the pod's guard saves and stops work"
    )
    found = []
    if limits.spend_micro_usd is not None:
        amount = f"{in_usd(limits.spend_micro_usd)}"
        own = f"{name}'s own limit of {amount}" if can.spend_limit else timer
        found.append(End(f"{amount} are spent", at_limit, own))
    if limits.time_s is not None:
        cost = in_usd(math.ceil(limits.micro_usd_per_hour * limits.time_s / 3600))
        most = f" ({cost})" if limits.micro_usd_per_hour else ""
        found.append(End(f"{duration(limits.time_s)} have passed{most}", at_limit, timer))
    by_itself = "the pod deletes itself" if is_gone else "the process that follows the run, or the next inv command"
    by_itself = f"{name}'s controller" if is_engine else by_itself
    if stays:
        found.append(End(WORK_OVER, "nothing: the pod stays for more work, until pod.down or a limit", timer))
    else:
        keeps = "nothing: the pod is kept (--on-failure keep)"
        found.append(End("the run succeeds", by_itself, timer))
        found.append(End("the run fails", by_itself if on_failure == "end" else keeps, timer))
        elsewhere = f"{name}; the controller continues the run elsewhere"
        taken = (
            (elsewhere, elsewhere)
            if is_engine
            else (
                f"{name}; the process that follows the run continues the run elsewhere",
                f"{name}; the run waits for an inv command",
            )
        )
        found.append(End(TAKEN, *taken))
    found.append(End(HANGS, "the process that follows the run, or the next inv command, at a limit", outside))
    if limits.idle_gpu_s is not None:
        found.append(End(f"no GPU works for {duration(limits.idle_gpu_s)}", at_limit, timer))
    return found


def caveats_of(name: str, documented: Abilities, can: Abilities, volume: str = "") -> list[str]:
    """Return the caveats about the ends and the price of a pod at a vendor, in sentences.

    `can`: the abilities at the API of the offer, where drills may have found less than `documented`. `volume`: the
    volume of the pod.
    """
    found = []
    if volume and documented.volumes_apart:
        found.append(
            f"{name} bills the volume {volume} separately, by use: no price, forecast or limit of Slipway includes the "
            "volume."
        )
    if documented.self_terminate != "pod_credential":  # the vendor keeps a timer
        return found
    if can.self_terminate != "pod_credential":
        found.append(f"At {name} a drill of this account found that a pod does not delete itself.")
    elif sum(one.startswith(SELF_DELETE) for one in can.drilled) < WAYS:
        found.append(
            f"At {name}, guard and dead-man timer delete the pod with the same key of the pod. Until a drill of this "
            f"account has proven each of the two requests ({packs.typed('inv drill')}), guard and timer count as one "
            "unproven end; the only other end is a process on a different machine."
        )
    others = [one.end for one in packs.always_on_machines()]
    who = (
        f"the launch while running on this machine, the supervisor of this machine, or {' or '.join(others)}"
        if others
        else "the launch while running on this machine, or the supervisor of this machine; neither works while the "
        "laptop is off"
    )
    return [
        *found,
        f"Only a process on a different machine ends a hanging machine of {name}: {who}. A shorter limit (--ttl, "
        "--spend-limit) does not help.",
    ]


def unattended_ends(name: str, can: Abilities, limits: Limits) -> str:
    """Return in words the ends of a held pod while no `inv` command runs.

    `limits`: limits of the pod, with the price.
    """
    ends = [one for one in ends_of(name, can, limits, "end", stays=True) if one.what not in (WORK_OVER, HANGS)]
    whats, others = (
        " or ".join(dict.fromkeys(words)) for words in ([one.what for one in ends], [one.backstop for one in ends])
    )
    return (
        f"a pod at {name} ends when {whats}: {ends[0].by}; else {others}"
        if ends
        else (f"a pod at {name} bills until inv runs")
    )
