"""Count in a file, each number once; a lock detects two concurrent processes."""

import fcntl
import os
import time

work = os.environ["SLIPWAY_WORK"]
alone = os.open(os.path.join(work, "alone"), os.O_WRONLY | os.O_CREAT)
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    with open(os.path.join(work, "overlap.txt"), "a") as overlap:
        overlap.write("overlap\n")
with open(os.path.join(work, "count.txt"), "a+") as file:
    file.seek(0)
    number = len(file.readlines())
    while not os.path.exists(os.path.join(work, "enough")):
        print(number, file=file, flush=True)
        number += 1
        time.sleep(0.01)
