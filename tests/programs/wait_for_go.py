"""Wait for a file `go`; on SIGTERM record the signal, and exit with 75."""

import os
import signal
import sys
import time


def leave(*_):
    with open(os.path.join(os.environ["SLIPWAY_WORK"], "left.txt"), "a") as left:
        left.write("left\n")
    sys.exit(75)


signal.signal(signal.SIGTERM, leave)
with open(os.path.join(os.environ["SLIPWAY_WORK"], "ran.txt"), "a") as ran:
    ran.write("ran\n")
while not os.path.exists(os.path.join(os.environ["SLIPWAY_WORK"], "go")):
    time.sleep(0.02)
