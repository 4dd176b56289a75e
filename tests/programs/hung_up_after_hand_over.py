"""Run `inv` in a terminal that closes just after the hand-over of a run, before a process follows the run."""

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
