"""Run `inv`, killed at the moment of the hand-over of a run."""

import os
import signal
import sys

from invoke import main

from infra.runs import launch

hand_over = launch.hand_over


def killed(*words, **more):
    hand_over(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)


launch.hand_over = killed
sys.argv[0] = "inv"
main.program.run()
