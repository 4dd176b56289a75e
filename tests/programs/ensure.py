"""Make an environment by the agent's code, and print the interpreter."""

import json
import os
import sys
from pathlib import Path

from infra.agent.environments import environment, packages

name, code, cache, torch = sys.argv[1:]
carried = packages.CarriedSources(**json.loads(os.environ.get("CARRIED", "{}")))
try:
    print(environment.ensure(name, Path(code), Path(cache), torch, lambda text: print(text, file=sys.stderr), carried))
except environment.EnvironmentFailed as error:
    sys.exit(str(error))
