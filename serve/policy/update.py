"""Update from one version of a service to the next: the replicas that serve meanwhile, and the old replicas to stop.

rolling: old and new replicas answer; for each ready new replica an old replica stops. blue_green: the old replicas
answer until `least` new replicas are ready, then only the new replicas do. The autoscaler starts new replicas beside
the old, so at most twice as many run. A new version that never becomes ready leaves the old version serving. Pure.
Source: SkyServe, docs/source/serving/update.rst.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from serve.policy.replica_states import LIVE, State

MODES = ("rolling", "blue_green")


@dataclass(frozen=True, kw_only=True)
class UpdateMember:
    number: int
    version: int
    state: State


def serving(mode: str, least: int, members: Iterable[UpdateMember]) -> tuple[int, ...]:
    """Return the numbers of the replicas that may receive requests."""
    ready = [one for one in members if one.state is State.READY]
    if mode == "blue_green" and ready:
        versions = sorted({one.version for one in ready})
        whole = [one for one in versions if _count(ready, one) >= max(1, least)]
        version = whole[-1] if whole else versions[0]
        ready = [one for one in ready if one.version == version]
    return tuple(one.number for one in ready)


def replicas_to_stop(
    mode: str, least: int, final: int, newest: int, members: Sequence[UpdateMember]
) -> tuple[int, ...]:
    """Return the numbers of old replicas to stop now, the least ready first. `final`: wanted number of new replicas."""
    old = [one for one in members if one.version < newest and one.state.is_alive]
    new_ready = sum(one.version == newest and one.state is State.READY for one in members)
    if mode == "blue_green":
        return tuple(one.number for one in old) if new_ready >= max(1, least) else ()
    old.sort(key=lambda one: (LIVE.index(one.state), one.version, -one.number))
    keep = max(0, final - new_ready)
    return tuple(one.number for one in old[: max(0, len(old) - keep)])


def _count(members: Iterable[UpdateMember], version: int) -> int:
    return sum(one.version == version for one in members)
