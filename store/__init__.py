"""The artifact store: folders under names, each with a fingerprint and a manifest that is written last."""

from store.artifacts.artifacts import Store
from store.manifest import Artifact, Manifest, StoreError, places

__all__ = ["Artifact", "Manifest", "Store", "StoreError", "places"]
