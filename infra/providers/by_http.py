"""What is the same for every vendor that is asked over HTTP, and whose pods are reached by a key of their own."""

from infra.agent.job import Call
from infra.json_api import JsonApi
from infra.pod_keys import PodKeys
from infra.providers import Abilities
from infra.records import Pod
from infra.ssh import Ssh


class ByHttp:
    """The part of a `Market` that its API and its keys answer."""

    is_here, is_rented = False, True
    pod_store = ""
    can: Abilities
    api: JsonApi
    keys: PodKeys

    @property
    def clock_scale(self) -> float:
        return self.api.clock_scale

    @property
    def settle_s(self) -> float:
        return self.can.settle_s / self.clock_scale

    @property
    def farewell(self) -> tuple[Call, ...]:
        """None: its pods get no key of the vendor."""
        return ()

    def now(self) -> float:
        return self.api.now()

    def reach(self, pod: Pod) -> Ssh:
        return self.keys.reach(pod)

    def forget(self, token: str) -> None:
        self.keys.forget(token)
