"""Count to twenty from the newest checkpoint; at ten, wait for a file GO."""

import hashlib
import json
import os
import pathlib
import time

work = pathlib.Path(os.environ["SLIPWAY_WORK"])
folder = work / "checkpoints" / "count"
folder.mkdir(parents=True, exist_ok=True)
done = max((int(one.name[5:]) for one in folder.glob("step-*")), default=0)
print("from", done, flush=True)
while done < 20:
    done += 1
    print("step", done, flush=True)
    draft = folder / ".draft"
    draft.mkdir()
    (draft / "weights").write_text(str(done))
    sha = hashlib.sha256(str(done).encode()).hexdigest()
    files = [{"path": "weights", "size": len(str(done)), "sha256": sha}]
    (draft / "MANIFEST.json").write_text(json.dumps({"step": done, "files": files}))
    draft.rename(folder / f"step-{done:09d}")
    while done == 10 and not pathlib.Path("GO").exists():
        time.sleep(0.05)
