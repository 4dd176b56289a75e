"""The artifact store: folders of files under names, each with a fingerprint and a manifest that is written last."""
