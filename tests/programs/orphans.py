"""Fork twice into a separate session and ignore TERM; once with the pod's environment, once without."""

import os
import signal
import sys
import time

work = os.environ["SLIPWAY_WORK"]
for environ in (dict(os.environ), {}):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], environ)
        os._exit(0)
    os.wait()
with open(os.path.join(work, "ran.txt"), "a") as file:
    file.write("ran\n")
while not os.path.exists(os.path.join(work, "go")):
    time.sleep(0.02)
