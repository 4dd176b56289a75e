"""Runner for a module in a separate environment, which is built first if missing.

    python -m infra.agent.own_environment ENVIRONMENT MODULE [WORDS ...]

Builds the environment from this file's code folder, `SLIPWAY_ENVIRONMENTS` and the package sources sent with the job,
then replaces the process by `python -m MODULE WORDS` at low priority. If the environment cannot be built, prints one
line and exits with 1. Sidecars start this way, so that a broken sidecar environment never fails the run.
"""

import contextlib
import os
import sys
from typing import Sequence

from infra.agent import step_zero
from infra.agent.environments import cache_folder, environment
from infra.agent.environments.packages import CarriedSources
from infra.agent.job import PodFolder
from infra.agent.shortage import SCORE
from infra.agent.state import CODE, read_json

NICE = 10
OOM_FIRST = "700"  # the OOM killer selects this process first


def main(words: Sequence[str]) -> int:
    name, module, *rest = words
    with contextlib.suppress(OSError):  # not permitted on some machines
        os.nice(NICE)
    with contextlib.suppress(OSError):  # not on Linux
        SCORE.write_text(OOM_FIRST)
    carried = CarriedSources(**read_json(step_zero.packages_of(PodFolder(CODE.parent))))
    try:
        python = environment.ensure(
            name,
            CODE,
            cache_folder.default_cache(),
            environment.torch_build(),
            lambda text: print(text, flush=True),
            carried,
        )
    except environment.EnvironmentFailed as error:
        print(error, flush=True)
        return 1
    os.execv(str(python), [str(python), "-m", module, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
