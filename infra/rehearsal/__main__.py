"""`python -m infra.rehearsal --state DIR`: a world in the foreground, until SIGTERM or Ctrl-C.

Says one JSON line once it answers: addresses and keys. The same stands in DIR/world.json as long as it lives.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from infra.errors import SlipwayError
from infra.rehearsal.faults import Plan, read_plan
from infra.rehearsal.offers import BUNDLED, read_offers
from infra.rehearsal.world import World


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m infra.rehearsal", description="A simulated market of GPU machines."
    )
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="where its pods live; one world each")
    parser.add_argument("--speed", type=float, default=60.0, help="simulated seconds per second (%(default)s)")
    parser.add_argument("--faults", type=Path, metavar="FILE", help="YAML: what goes wrong, and when")
    parser.add_argument("--offers", type=Path, metavar="FILE", default=BUNDLED, help="JSON: what can be rented")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(words)
    if not 0 < flags.speed <= 1e6:
        parser.error("--speed is a positive number, at most a million")
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before any thread is made, so that all of them inherit it
    try:
        plan = read_plan(flags.faults) if flags.faults else Plan()
        with World(
            flags.state.absolute(), read_offers(flags.offers), plan, speed=flags.speed, seed=flags.seed
        ) as world:
            print(json.dumps(world.about()), flush=True)
            signal.sigwait(signals)
    except (SlipwayError, OSError) as error:
        print(f"rehearsal: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, SlipwayError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
