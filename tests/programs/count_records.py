"""Write a record for each number up to `total`, and a line after the run."""

import json
import os
import sys

with open(sys.argv[sys.argv.index("--config") + 1]) as file:
    config = json.load(file)
with open(os.environ["SLIPWAY_RECORDS"], "a") as records:
    for done in range(config["total"]):
        print(json.dumps({"kind": "progress", "done": done + 1}), file=records)
    print(json.dumps({"kind": "result", "total": config["total"]}), file=records)
with open(os.path.join(os.environ["SLIPWAY_WORK"], "ran.txt"), "a") as ran:
    print(__name__, config["total"], file=ran)
