"""Run as the process of one node: exit when the file `go` exists, with the code in the file."""

import os
import sys
import time

work = os.environ["SLIPWAY_WORK"]
with open(os.path.join(work, "ran.txt"), "a") as file:
    print(*sys.argv[1:3], os.environ["SLIPWAY_NODE_RANK"], os.environ["SLIPWAY_RUN_ID"], file=file)
while not os.path.exists(os.path.join(work, "go")):
    time.sleep(0.02)
with open(os.path.join(work, "go")) as go:
    sys.exit(int(go.read() or 0))
