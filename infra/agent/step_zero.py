"""Step 0 of a job: builds the environments of the other steps.

`--config FILE` holds {names, code, cache, torch}; `state/packages.json`, if the hand-over wrote one, holds {uv,
settings} as in `packages.CarriedSources`. Writes a record per action, and a result that maps each name to an
interpreter. Prints one line and exits with 1 if an environment cannot be built.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, Sequence

from infra.agent.environments import cache_folder
from infra.agent.job import Job, PodFolder, Step
from infra.agent.state import read_json

NAME = "environment"


def step_of(job: Job, code: Path) -> Step:
    steps = (*job.steps, *([job.beside] if job.beside else []))
    names = sorted({step.environment for step in steps if step.environment} | set(job.setup))
    config: Dict[str, Any] = {"names": names, "code": str(code), "cache": job.environments, "torch": job.torch}
    if job.no_setup:
        config["only_there"] = True
    return Step(name=NAME, words=("-m", "infra.agent.step_zero"), config=config)


def packages_of(pod: PodFolder) -> Path:
    """Return the file with the package sources sent to a pod."""
    return pod.state / "packages.json"


def main(words: Sequence[str]) -> int:
    from infra.agent.environments import environment
    from infra.agent.environments.packages import CarriedSources

    flag, path = words
    assert flag == "--config"
    config = json.loads(Path(path).read_text(encoding="utf-8"))
    code = Path(config["code"])
    cache = Path(config["cache"]) if config["cache"] else cache_folder.default_cache()
    carried = CarriedSources(**read_json(packages_of(PodFolder(code.parent))))
    try:
        if config.get("only_there"):
            pythons = {name: str(_there(name, code, cache, config["torch"])) for name in config["names"]}
        else:
            pythons = {
                name: str(environment.ensure(name, code, cache, config["torch"], _say, carried))
                for name in config["names"]
            }
    except environment.EnvironmentFailed as error:
        print(error, flush=True)
        return 1
    _emit("result", pythons=pythons)
    return 0


def _there(name: str, code: Path, cache: Path, torch: str) -> Path:
    """Return the interpreter of an existing environment: of this code, else the newest environment of this name."""
    from infra.agent.environments import environment

    found = environment.find(name, code, cache, torch)
    if found:
        _say(f"setup: skipped; {name} already exists")
        return found
    newest = environment.newest(name, cache)
    if newest is None:
        raise environment.EnvironmentFailed(
            f"--no-setup: {cache} has no {name} environment; run once without --no-setup to make the environment"
        )
    _say(f"setup: skipped; {newest.parents[1]} is used, although this code requires other packages")
    return newest


def _say(text: str) -> None:
    print(text, flush=True)
    _emit("note", text=text)


def _emit(kind: str, **values: Any) -> None:
    with open(os.environ["SLIPWAY_RECORDS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, "at": time.time(), **values}) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
