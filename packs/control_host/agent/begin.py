"""First program of Slipway on a control host: builds the command environment and execs a module in the environment.

    python3 -m packs.control_host.agent.begin invoke --search-root . status

The program lies in the pushed code and takes the module and the words of the module as arguments. The source may use
only the standard library and `infra.agent`, in a syntax that Python 3.9 parses, because the newer Python is in the
environment.
"""

import os
import sys
from pathlib import Path

from infra.agent.environments import cache_folder, environment
from infra.agent.environments.packages import CarriedSources
from infra.agent.job import PodFolder
from infra.agent.state import read_json
from infra.agent.step_zero import packages_of

CODE = Path(__file__).resolve().parents[3]


def main(words: list[str]) -> int:
    """Exec the module named by `words`. Return an exit code if the environment cannot be built."""
    carried = CarriedSources(**read_json(packages_of(PodFolder(CODE.parent))))
    try:
        python = environment.ensure("control", CODE, cache_folder.default_cache(), "", _say, carried)
    except environment.EnvironmentFailed as error:
        _say(f"on this control host {error}")
        return 1
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.chdir(CODE)
    os.execv(python, [str(python), "-m", *words])


def _say(text: str) -> None:
    sys.stderr.write(f"inv: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
