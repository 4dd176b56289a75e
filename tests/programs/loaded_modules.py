"""Run `inv WORDS` in this process; print the loaded modules of ours, as JSON on the last line of stdout."""

import json
import sys
from pathlib import Path

from invoke.main import program

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
program.run(["inv", "--search-root", str(ROOT), *sys.argv[1:]], exit=False)
files = {name: Path(file) for name, one in list(sys.modules.items()) if (file := getattr(one, "__file__", None))}
ours = {name: path.relative_to(ROOT) for name, path in files.items() if path.is_relative_to(ROOT)}
own = {name: str(path) for name, path in ours.items() if path.parts[0] not in (".venv", "tests") and name != "__main__"}
print(json.dumps(own))
