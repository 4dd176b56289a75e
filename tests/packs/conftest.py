"""The tests of a pack are collected where its folder is there; those of the whole set where all folders are."""

from store import packs

collect_ignore = [name for name in packs.known() if name not in packs.installed()]
if collect_ignore:
    collect_ignore.append("test_index.py")
