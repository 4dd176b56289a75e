"""`python -m infra.rehearsal --state DIR`: a world in the foreground, until SIGTERM or Ctrl-C.

Prints a JSON line with addresses and keys once the world answers; DIR/world.json has the same content while the world
runs. With `--idle-s` the world ends after this many seconds without a live machine and without a request. At the end,
DIR/ended.json records time and reason; a killed world leaves world.json.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from infra.agent.job import write_durably
from infra.errors import SlipwayError
from infra.rehearsal.faults import Plan, read_plan
from infra.rehearsal.offers import BUNDLED, read_offers
from infra.rehearsal.world import World
from infra.rehearsal.world_files import ENDED

LOOK_S = 0.5


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.rehearsal", description="A simulated market of GPU machines."
    )
    parser.add_argument(
        "--state",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder of the simulated pods; one folder per rehearsal",
    )
    parser.add_argument("--speed", type=float, default=60.0, help="simulated seconds per second (%(default)s)")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="YAML file of simulated faults and their times")
    parser.add_argument("--offers", type=Path, metavar="FILE", default=BUNDLED, help="JSON file of the offers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--idle-s", type=float, default=0.0, help="exit after this many idle seconds; 0: never")
    flags = parser.parse_args(words)
    if not 0 < flags.speed <= 1e6:
        parser.error("--speed must be a positive number, at most a million")
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the first thread, so that all threads inherit the mask
    try:
        plan = read_plan(flags.faults) if flags.faults else Plan()
        with World(
            flags.state.absolute(), read_offers(flags.offers), plan, speed=flags.speed, seed=flags.seed
        ) as world:
            print(json.dumps(world.client_config()), flush=True)
            why = wait(world, signals, flags.idle_s)
        write_durably(flags.state / ENDED, json.dumps({"at": int(time.time()), "why": why}))
    except (SlipwayError, OSError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SlipwayError) else 1
    return 0


def wait(world: World, signals: set[signal.Signals], idle_s: float) -> str:
    """Wait for a signal or for the idle timeout; return the reason as text."""
    while not signal.sigtimedwait(signals, LOOK_S):
        if idle_s and world.idle_s() >= idle_s:
            return f"idle for {idle_s:g} s"
    return "stopped by a signal"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
