"""Providers whose pods are containers."""

from infra.providers import Abilities
from infra.providers.by_name import PROVIDERS
from store import packs


def boots_images(name: str) -> bool:
    """Return whether a provider documents that its pods are containers, which boot an image of the user."""
    where = PROVIDERS.get(name)
    documented = getattr(packs.load(where), "documented", None) if where else None
    return isinstance(documented, Abilities) and documented.images
