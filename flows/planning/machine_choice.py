"""The choice of a rented machine for a plan: the cheapest offer with enough GPU memory for every phase.

    phases of a plan, a request that leaves GPUs open, offers
        -> ChosenMachine: a request for one number of GPUs, its offers, the fact that decided

The input is the pending phases and a request with the typed values and the values of the recipe. The result is the
offers on which every phase fits by the estimate of `inv fit`, cheapest first, all with the GPU count of the cheapest,
so that a single plan suits all of them. `flows.runs.launch.prepare` narrows every survey of offers this way and plans
again for the chosen machine. Memory decides before price; if no offer fits, the refusal names the smallest change.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from flows.planning.estimates import phases_of
from infra.errors import NoOffer, UsageError
from infra.market import gpus
from infra.providers import Provider
from infra.records import Offer, Plan, Request
from infra.runs.engine import RunEngine, engine_of
from infra.selection import choose
from infra.selection.choose import ChosenMachine, Tell
from infra.selection.machine_spec import NO_GPU, MachineSpec
from infra.settings import Settings
from infra.units import count, dollars, per_hour, size
from trainer.config import PhaseConfig, Profile
from trainer.plan.estimates import min_gpu_bytes, smallest_fitting_options
from trainer.plan.phase_needs import needs_of

NUMBERS = (1, 2, 4, 8)  # GPU counts per machine in clouds
OTHER = "to choose a machine: --gpu, --num-gpus"
PLACE = ("cloud", "region", "country", "city")
S = TypeVar("S", bound=MachineSpec)


@dataclass(frozen=True, kw_only=True)
class MachineChoice:
    """The needs of the phases of a plan, and other constraints on the machine."""

    phases: tuple[PhaseConfig, ...]
    ask: Callable[[Request], Sequence[Offer]]
    """Query for the offers of a different request, to find the smallest change. Raises NoOffer."""
    named: str = ""
    """Description of the machine named by a recipe; "" = none."""
    any_number: bool = False
    """True if offers with other GPU counts than the cheapest are kept (`--all-configs`)."""

    def narrow(self, request: Request, offers: Sequence[Offer]) -> ChosenMachine:
        """Return the offers that hold the plan, and the request with their GPUs.

        Raise NoOffer if no offer holds the plan, or UsageError if the user has fixed an unsuitable machine.
        """
        if not self.phases:  # a user job states its own needs
            return choose.as_found(request, offers)
        if request.without_gpu:
            raise UsageError(
                "--gpu none: training on a rented machine needs a GPU. To train without a GPU on this machine, for "
                "free: --provider local"
            )
        holding = self._fitting_offers(request, offers)
        if not holding:
            is_fixed = request.num_gpus and (request.gpu or request.instance_type)  # a fixed machine can never fit
            raise (UsageError if is_fixed else NoOffer)(self._refusal(request, offers))
        number = holding[0].num_gpus
        left = [one for one in holding if self.any_number or one.num_gpus == number]
        return ChosenMachine(
            request=_with_gpus(request, left, number), offers=tuple(left), reason=self._reason(request, offers, left[0])
        )

    def vendor_request(self, request: Request) -> Request:
        """Return the request to send to vendors: for spot machines, with the fewest GPUs on which the plan may fit.

        RunPod returns a spot price per kind and count of GPUs, and querying all combinations would exceed the survey
        timeout.
        """
        is_open = not (request.num_gpus or request.gpu or request.instance_type or self.any_number)
        if not (request.spot and is_open and self.phases):
            return request
        largest = max(gpus.memory_bytes(one.name) for one in gpus.GPUS if gpus.is_for_training(one.name))
        numbers = [
            one for one in NUMBERS if one >= self.fewest and self.required_gpu_bytes(one, request.nodes) <= largest
        ]
        return replace(request, num_gpus=next(iter(numbers), 0))

    def find(self, request: Request, candidates: Sequence[Provider], settings: Settings, tell: Tell) -> ChosenMachine:
        """Return the choice among the current offers of these providers. Raise the errors of `choose.find`."""
        if taker := engine_of(candidates[0]):
            kinds = self.choose_kinds(request, taker)
            return replace(kinds, offers=tuple(choose.find(candidates, kinds.request, settings, tell)))
        request = self.vendor_request(request)
        return self.narrow(request, choose.find(candidates, request, settings, tell))

    def choose_kinds(self, request: Request, taker: RunEngine) -> ChosenMachine:
        """Return the request for an engine, which takes the cheapest of all fitting GPU kinds if no kind is named."""
        if not self.phases or request.gpu or request.instance_type:
            return ChosenMachine(request=request, offers=())
        for number in (request.num_gpus,) if request.num_gpus else NUMBERS:
            need = self.required_gpu_bytes(number, request.nodes)
            if fitting := [
                kind for kind in taker.gpu_kinds if number >= self.fewest and gpus.memory_bytes(kind) >= need
            ]:
                said = (
                    f"machine: {count(number, 'GPU')} of {', '.join(fitting)}; {taker.title} takes the cheapest. The "
                    f"plan needs {size(need)} of memory on each GPU; {OTHER}"
                )
                return ChosenMachine(
                    request=replace(request, gpu=",".join(fitting), num_gpus=number), offers=(), reason=said
                )
        short = self._shortage(taker.gpu_kinds[-1], number, request)
        raise NoOffer(f"no machine of {taker.title} holds the plan: {short}; name a machine: --gpu, --num-gpus")

    @property
    def fewest(self) -> int:
        """Return the smallest number of GPUs on which every phase can run."""
        return max(needs_of(one).min_gpus(one) for one in self.phases)

    def required_gpu_bytes(self, num_gpus: int, nodes: int) -> int:
        """Return the required memory in bytes of each of `num_gpus` GPUs."""
        return max(min_gpu_bytes(one, num_gpus, nodes) for one in self.phases)

    def _fitting_offers(self, request: Request, offers: Sequence[Offer]) -> list[Offer]:
        return [one for one in _candidates(request, offers) if self._fits(one, request.nodes)]

    def _fits(self, offer: Offer, nodes: int) -> bool:
        """Return whether the plan fits on an offer; unknown memory counts as enough, since the user named the GPU."""
        has = _memory(offer)
        return offer.num_gpus >= self.fewest and (not has or has >= self.required_gpu_bytes(offer.num_gpus, nodes))

    def _reason(self, request: Request, offers: Sequence[Offer], first: Offer) -> str:
        """Return the deciding fact for the cheapest machine, or "" if the user typed the machine."""
        machine = f"machine: {_words(first)} at {per_hour(first.micro_usd_per_hour)}"
        is_kind_open, is_number_open = not (request.gpu or request.instance_type), not request.num_gpus
        if not (is_kind_open or is_number_open):
            return f"{machine}; {self.named}; {OTHER}" if self.named else ""
        need = f"the plan needs {size(self.required_gpu_bytes(first.num_gpus, request.nodes))} of memory on each GPU"
        of = "" if is_kind_open and is_number_open else f" with {request.gpu or count(request.num_gpus, 'GPU')}"
        of += f" ({self.named})" if self.named else ""
        small = [one for one in _candidates(request, offers) if not self._fits(one, request.nodes)]
        cheaper = [one for one in small if one.micro_usd_per_hour < first.micro_usd_per_hour]
        if cheaper:
            least = cheaper[0]
            lacks = (
                f"has {size(_memory(least))}" if least.num_gpus >= self.fewest else f"has fewer than {self.fewest} GPUs"
            )
            other = f"{_words(least)} at {per_hour(least.micro_usd_per_hour)} {lacks}"
            what = "memory decides" if least.num_gpus >= self.fewest else "the number of GPUs decides"
            fact = f"{what}: {need}. This offer is the cheapest offer{of} that holds the plan; {other}"
        else:
            fact = f"the price decides: {need}, and the cheapest offer{of} holds the plan"
        return f"{machine}; {fact}; {OTHER}"

    def _refusal(self, request: Request, offers: Sequence[Offer]) -> str:
        """Return why no offer holds the plan, and the smallest change to the request or plan."""
        among = _candidates(request, offers)
        if not among:
            kinds = ", ".join(dict.fromkeys(_words(one) for one in offers))
            return (
                f"no GPU on offer is chosen for a training by default: {kinds}. The default choices are NVIDIA GPUs "
                "with a known bfloat16 speed. To take an offered GPU: --gpu KIND"
            )
        best = max(among, key=lambda one: _memory(one) / self.required_gpu_bytes(one.num_gpus, request.nodes))
        said = f"no machine on offer holds the plan: {self._shortage(best.gpu, best.num_gpus, request, _memory(best))}"
        change = self._other_machine(request) or self._smaller_plan(best, request.nodes)
        return f"{said}. The smallest change: {change}"

    def _shortage(self, gpu: str, number: int, request: Request, has: int = 0) -> str:
        """Return the memory need of the largest phase and the memory of the closest machine, as text."""
        if number < self.fewest:
            return f"the plan needs {self.fewest} GPUs in one machine; the nearest offer has {number} x {gpu}"
        most = max(self.phases, key=lambda one: min_gpu_bytes(one, number, request.nodes))
        need, has = min_gpu_bytes(most, number, request.nodes), has or gpus.memory_bytes(gpu)
        return f"{most.phase} needs {size(need)} of memory on each of {count(number, 'GPU')}, and {gpu} has {size(has)}"

    def _other_machine(self, request: Request) -> str:
        """Return the flags for a different offered machine with room for the plan, or ""."""
        for other in _relaxed(request):
            try:
                holding = self._fitting_offers(other, self.ask(other))
            except NoOffer:
                continue
            if holding:
                one = holding[0]
                return f"{_flags(request, other, one)} ({_words(one)}, {per_hour(one.micro_usd_per_hour)})"
        return ""

    def _smaller_plan(self, best: Offer, nodes: int) -> str:
        """Return the options with which every phase fits on this offer."""
        short = [one for one in self.phases if min_gpu_bytes(one, best.num_gpus, nodes) > _memory(best)]
        flags = [smallest_fitting_options(one, _memory(best), best.num_gpus, nodes) for one in short]
        if not short or not all(flags):
            return "a smaller recipe (--profile); to list the GPUs that fit a recipe: inv fit"
        return f"{' '.join(flags)} (on {_words(best)})"


def of_plan(
    plan: Plan, candidates: Sequence[Provider], settings: Settings, named: str = "", any_number: bool = False
) -> MachineChoice:
    """Return the choice of the machine for a plan on these providers."""
    ask = partial(choose.find, candidates, settings=settings, tell=lambda _: None)
    phases = tuple(phases_of(plan.job.steps)) if plan.job else ()
    return MachineChoice(phases=phases, ask=ask, named=named, any_number=any_number)


def with_recipe(spec: S, profile: Profile) -> tuple[S, str]:
    """Return the flags with the machine of the recipe where the user typed none, and a description of this machine."""
    of_recipe = profile.machine
    gpu = "" if spec.gpu or spec.instance_type else of_recipe.gpu
    has_number = spec.num_gpus or spec.all_configs or spec.instance_type or ":" in spec.gpu or spec.gpu == NO_GPU
    number = 0 if has_number else of_recipe.num_gpus
    if not (gpu or number):
        return spec, ""
    what = f"{number} x {gpu}" if gpu and number else gpu or count(number, "GPU")
    more = replace(spec, gpu=spec.gpu or gpu, num_gpus=spec.num_gpus or number)
    return more, f"recipe {profile.name} names {what}"


def _candidates(request: Request, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers with GPUs; without a named kind, only offers with GPUs known to work for training.

    Without a named kind, offers with several slices of GPUs are excluded, since slices cannot work together.
    """
    if request.gpu or request.instance_type:
        return [one for one in offers if one.num_gpus]
    return [
        one
        for one in offers
        if one.num_gpus and _memory(one) and gpus.is_for_training(one.gpu)
        if one.num_gpus == 1 or not gpus.is_slice(one.gpu)
    ]


def _with_gpus(request: Request, offers: Sequence[Offer], number: int) -> Request:
    """Return the request for `number` GPUs of the kinds in the request, else of the kinds in the offers."""
    kinds = [kind for kind, many in gpus.read_set(request.gpu) if many in (0, number)]
    if not (kinds or request.instance_type):
        kinds = list(dict.fromkeys(one.gpu for one in offers))
    return replace(request, gpu=",".join(kinds), num_gpus=number)


def _memory(offer: Offer) -> int:
    """Return the memory of each GPU in bytes; 0 if neither the vendor nor our table has the value."""
    return offer.gpu_memory_bytes or gpus.memory_bytes(offer.gpu)


def _words(offer: Offer) -> str:
    return f"{offer.num_gpus} x {offer.gpu}" if offer.num_gpus else "no GPU"


def _relaxed(request: Request) -> Iterator[Request]:
    """Yield the request without each single constraint on GPUs, price and place, then without all of them."""
    kinds = ",".join(kind for kind, _ in gpus.read_set(request.gpu))
    ways: list[dict[str, Any]] = [
        {"gpu": kinds, "num_gpus": 0},
        {"gpu": "", "instance_type": ""},
        {"max_micro_usd_per_hour": 0},
        dict.fromkeys(PLACE, ""),
    ]
    ways.append({name: value for way in ways for name, value in way.items()})
    yield from (other for way in ways if (other := replace(request, **way)) != request)


def _flags(request: Request, other: Request, offer: Offer) -> str:
    """Return the flags to turn `request` into `other`, for this offer."""
    found = []
    if (request.gpu, request.instance_type) != (other.gpu, other.instance_type) and not other.gpu:
        found.append(f"--gpu {offer.gpu}")
    if request.num_gpus != other.num_gpus or request.gpu != other.gpu and other.gpu:
        found.append(f"--num-gpus {offer.num_gpus}")
    if request.max_micro_usd_per_hour != other.max_micro_usd_per_hour:
        found.append(f"--max-price {dollars(offer.micro_usd_per_hour)}")
    left = [f"--{name}" for name in PLACE if getattr(request, name) != getattr(other, name)]
    return " ".join([*found, *([f"without {' '.join(left)}"] if left else [])])
