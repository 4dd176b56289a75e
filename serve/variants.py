"""Variants of a served model: changes of the model, such as adapters, each with a name of its own for clients.

    serve.up, pack's command -> WantedService.variants -> controller -> ROUTE of each engine -> gateway: who has which

A variant is loaded into running engines, so a change restarts no replica. A pack declares the program that loads
variants into an engine under `variant_routes`, and the kinds of variants as a `VariantFlags` of `serve.up`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from store import packs

ROUTE = "/slipway/variants"
"""Path at the engine: GET returns {"variants": {name: identity}}; POST with the fields of `LoadRequest` loads a
variant; DELETE with {"name"} unloads the variant."""
ENGINES = ("vllm", "vllm-cpu", "torch", "fake")
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # of vLLM 0.32
KIND = "variant_routes"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of a served model."""

    source: str
    """Folder on this machine, or the address of a folder: hf://, s3:// or gs://."""
    identity: str
    """Text that differs for each content."""
    title: str
    """Source for users: the name of an artifact, a folder or an address."""
    rank: int
    """Rank of the change, for the memory that an engine reserves."""


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """Body of a POST to ROUTE."""

    name: str
    source: str
    identity: str


@dataclass(frozen=True, kw_only=True)
class VariantFlags:
    """Base class of a record of flags that a pack adds to `serve.up`."""

    def named(self) -> Mapping[str, str]:
        """Return the sources as typed, by name for clients."""
        raise NotImplementedError

    def resolve(self, source: str, model: str, settings: Any) -> Variant:
        """Return the variant in `source` of the model in `model`, a folder or an address.

        settings: `infra.settings.Settings`. Raises UsageError for an unusable variant.
        """
        raise NotImplementedError


def can_load(engine: str, slots: int) -> bool:
    """Return whether running engines load variants. slots: the option `variants` of the engine (`Tuning`)."""
    return engine in ENGINES and (slots > 0 or not engine.startswith("vllm"))


def route_of(engine: str) -> str:
    """Return the ASGI middleware that serves ROUTE in an engine, as "module:class". Raises UsageError for none."""
    known = packs.entries(KIND)
    if engine not in known:
        missing = packs.missing_pack_message(KIND, engine)
        raise UsageError(missing or f"no installed pack loads variants of models into the engine {engine}")
    return known[engine]


def vllm_rank(rank: int) -> int:
    """Return the smallest rank of vLLM's list from `rank` on. Raises UsageError."""
    found = next((one for one in VLLM_RANKS if one >= rank), 0)
    if not found:
        raise UsageError(f"vLLM serves ranks of at most {VLLM_RANKS[-1]}, and the rank is {rank}")
    return found
