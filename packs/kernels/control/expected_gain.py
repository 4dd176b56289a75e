"""The mode of a job for kernels, and the lines of the plan: the expected gain, or the reason for compiling again."""

from collections.abc import Sequence

from infra.agent.amounts import duration
from infra.records import Inventory
from infra.settings import Settings
from infra.units import size
from packs.kernels.control import signing_key
from packs.kernels.control.signing_key import VARIABLE
from packs.kernels.records.job_variables import COLD, KIND, MODE, OWN, RENTED
from packs.kernels.records.work_shape import KeptKernels, read_about, shape_of
from store import credentials
from store.manifest import kind_of
from trainer.config import PhaseConfig


def mode_and_notes(
    phases: Sequence[PhaseConfig], is_cold: bool, is_own: bool, settings: Settings, there: Inventory
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variable of the job and the notes about the compiled phases of a plan.

    The plan knows the shape of the work; the machine of the run decides about each bundle of kernels. Raises UsageError
    for a short key.
    """
    if is_cold:
        return {MODE: COLD}, ("--cold: the run compiles every kernel, and keeps no kernels in the store",)
    mode = {MODE: OWN if is_own else RENTED}
    is_remote = credentials.kind(settings.store) not in ("", "file")
    if is_remote and not is_own and not signing_key.check(settings):
        return mode, (
            f"each start compiles all kernels: without {VARIABLE}, kernels in {settings.store} cannot be trusted. "
            f"To keep kernels: echo {VARIABLE}=$(openssl rand -hex 32) >> .env",
        )
    held = [read_about(one.about, one.num_bytes) for one in there.kept if kind_of(one.name) == KIND and not one.problem]
    by_phase = {one.phase: [kernels for kernels in held if kernels.shape == shape_of(one)] for one in phases}
    return mode, tuple(f"{phase}: {_gain(found)}" for phase, found in by_phase.items() if found)


def _gain(found: Sequence[KeptKernels]) -> str:
    best = max(found, key=lambda one: one.compile_s)
    machines = " and ".join(sorted({one.machine for one in found}))
    return (
        f"the store holds compiled kernels of this shape, {size(best.num_bytes)}. On the same kind of machine "
        f"({machines}) with the same packages, the start is up to {duration(best.compile_s)} shorter"
    )
