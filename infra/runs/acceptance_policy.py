"""Acceptance policy: examine machines before work, refuse pods over the spend cap, and remember bad machines.

The settings and a provider determine the `launch.Terms` of a launch.
"""

from dataclasses import replace

from infra.agent.limits import read_clocks
from infra.ledger import spend
from infra.ledger.op import Op
from infra.machines.host_memory import HostMemory, known_as
from infra.market import gpus
from infra.money import micro_usd
from infra.providers import Provider, is_examined
from infra.records import Offer, Request
from infra.runs.launch import Accept, Terms
from infra.settings import Settings
from infra.transport.protocol import Transport


def terms_for(settings: Settings, vendor: Provider, unchecked: bool = False) -> Terms:
    """Return the terms for machines of this vendor; `unchecked` skips the examination of machines."""
    examine = _accept(settings) if is_examined(vendor) and not unchecked else None
    if not vendor.is_rented:
        return Terms(accept=examine)
    of_all = micro_usd(str(settings.spend_cap_usd)) or None

    def admit(rows: list[Op], new: Op) -> None:
        spend.admit(rows, new, of_all=of_all, now=read_clocks(), scale=settings.clock_scale)

    def blame(offer: Offer, failure: str) -> None:
        HostMemory.beside(settings.state_file).blame(known_as(offer), failure)

    return Terms(accept=examine, admit=admit, blame=blame, boot_s=settings.boot_s)


def _accept(settings: Settings) -> Accept:
    """Return the acceptance check of a machine. A failed inventory machine is remembered and not offered again."""
    from infra.machines.acceptance import Thresholds, examine

    def judge(transport: Transport, request: Request, offer: Offer) -> str:
        promised = request
        if offer.num_gpus and not offer.place:  # For rented machines: the kind and size named by the vendor.
            kind = request.gpu if len(gpus.read_set(request.gpu)) == 1 else offer.gpu
            promised = replace(
                request, num_gpus=offer.num_gpus, gpu=kind.partition(":")[0], gpu_memory_bytes=offer.gpu_memory_bytes
            )
        report = examine(transport, promised, Thresholds.of(settings), python=transport.python)
        if offer.place and not report.is_accepted:
            HostMemory.beside(settings.state_file).blame(known_as(offer), report.failure)
        return report.failure

    return judge
