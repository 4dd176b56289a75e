"""The first program of ours that runs on a control host: it makes the environment of the commands and becomes a module.

    python3 -m packs.control_host.agent.begin invoke --search-root . status

In: the words after the interpreter. It lies in the code that was pushed there. Standard library and `infra.agent` only,
and a grammar that Python 3.9 reads: the environment has a newer one.
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
    """Become that module. Return an exit code when the environment cannot be made."""
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
