"""Collect the tests of a pack only with the pack's folder, and the tests of the whole set only with all folders."""

from store import packs

collect_ignore = [name for name in packs.known() if name not in packs.installed()]
if collect_ignore:
    collect_ignore.append("test_index.py")
