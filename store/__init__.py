"""The artifact store: folders under names, each with a fingerprint and a manifest that is written last."""
