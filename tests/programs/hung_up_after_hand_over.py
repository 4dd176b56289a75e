"""Be `inv`, whose terminal is closed just after a run was handed over, before anybody follows it."""

import os
import signal
import sys

from invoke import main

from flows.runs import receipt

write = receipt.write


def hung_up(*words, **more):
    os.kill(os.getpid(), signal.SIGHUP)
    return write(*words, **more)


receipt.write = hung_up
sys.argv[0] = "inv"
main.program.run()
