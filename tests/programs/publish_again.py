"""Publish the same artifact again and again."""

import sys

from store.artifacts.artifacts import Store

folder, root, flat = sys.argv[1], sys.argv[2], sys.argv[3] == "flat"
store = Store(root)
print("up", flush=True)
for _ in range(10**9 if sys.argv[4] == "forever" else int(sys.argv[4])):
    store.publish(folder, "thing", "f-" + folder[-1], {}, flat=flat)
