"""Read configs with excessive promises, with 64 MB to spare."""

import json
import resource
import sys
from pathlib import Path

from flows.models import init_model as initial
from infra.errors import UsageError
from infra.settings import Settings

folder, changes = Path(sys.argv[1]), json.loads(sys.argv[2])
settings = Settings.load(folder)
config = json.loads((folder / "config.json").read_text())
initial.resolve_import(str(folder), settings)
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), now + (64 << 20)))
for change in changes:
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    try:
        initial.resolve_import(str(folder), settings)
    except UsageError:
        continue
    raise SystemExit(f"{change}: it was read")
