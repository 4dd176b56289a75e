"""Print more than the maximum size of a log, and again after the rotation."""

import os
import time
from pathlib import Path

LINES = b"a line of a step that has much to say about nothing at all\n" * 10_000

for _ in range(70_000_000 // len(LINES)):
    os.write(1, LINES)
# The rotation creates the earlier part before the copy. A line printed during the copy can be lost by the truncation.
while (Path(os.environ["SLIPWAY_WORK"]).parent / "logs" / "print_much.log").stat().st_size:
    time.sleep(0.05)
print("after the rotation")
