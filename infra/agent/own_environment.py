"""A program in an environment of its own, which is made first where it is not there.

    python -m infra.agent.own_environment ENVIRONMENT MODULE [WORDS ...]

In: the code folder that this file lies in, SLIPWAY_ENVIRONMENTS, and the package sources that came along with a job.
Out: this process becomes `python -m MODULE WORDS`, at a low priority. Exit code 1 with one line when the environment
cannot be made. A sidecar is run so: whatever is wrong with its environment is its own trouble, and never the run's.
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
OOM_FIRST = "700"  # when memory runs out, this process is the one to be killed first


def main(words: Sequence[str]) -> int:
    name, module, *rest = words
    with contextlib.suppress(OSError):  # some machines do not allow it
        os.nice(NICE)
    with contextlib.suppress(OSError):  # no Linux
        SCORE.write_text(OOM_FIRST)
    carried = CarriedSources(**read_json(step_zero.packages_of(PodFolder(CODE.parent))))
    try:
        python = environment.ensure(
            name, CODE, cache_folder.default_cache(), environment.torch_build(), lambda text: print(text, flush=True),
            carried,
        )  # fmt: skip
    except environment.EnvironmentFailed as error:
        print(error, flush=True)
        return 1
    os.execv(str(python), [str(python), "-m", module, *rest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
