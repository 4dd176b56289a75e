"""Be `inv`, whose terminal is closed just after a run was handed over, before anybody follows it."""

import os
import signal
import sys

from invoke import main

from infra.runs.sync import snapshot

keep_code = snapshot.keep_code


def hung_up(*words, **more):
    os.kill(os.getpid(), signal.SIGHUP)
    return keep_code(*words, **more)


snapshot.keep_code = hung_up
sys.argv[0] = "inv"
main.program.run()
