"""An attacking job: fills the folder of logs of the pod, and forges lines of the list of logs by a name.

Input: `files.json` beside the program, contents by name; "@job" in a content is the pod's own job.json. Ends when FILE,
the only argument, exists.
"""

import json
import os
import sys
import time
from pathlib import Path

logs = Path(os.environ["SLIPWAY_WORK"]).parent / "logs"
files = json.loads(Path("files.json").read_text())
job = json.loads((logs.parent / "job.json").read_text())
forged = "b.log"
for name, said in files.items():
    if name == "run.json":
        steps = [{**job["steps"][-1], **one} for one in said["job"]["steps"]]
        said = {**said, "run": job["run"], "job": {**job, "steps": steps}}
    text = json.dumps(said)
    (logs / name).write_text(text)
    forged += f"\n{len(text)} 0 {name}"
(logs / "b.log").write_text("said\n")
(logs / "z.log").write_text("said\n")
(logs / f"{forged}\n5 0 z.log").write_text("said\n")
print("all is in its place", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.2)
