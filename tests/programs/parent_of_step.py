"""Run a step as a command does, print the pid, and exit as a command does."""

import signal
import sys
from contextlib import closing
from pathlib import Path

from infra import train_env as inside
from infra.interrupts import ExitRequested, raise_on_signals

with raise_on_signals():
    try:
        records = inside.run(["-m", "step"], {"wait": True}, root=Path.cwd(), python=Path(sys.executable))
        with closing(records):
            for one in records:
                print(one["pid"], flush=True)
                if "busy" in sys.argv:
                    signal.pause()
    except ExitRequested as told:
        sys.exit(told.exit_code)
