"""Shard text, and die at the N-th change of the folder."""

import json
import os
import signal
import sys
from pathlib import Path

from data.config import TextSpec
from data.shards.pipeline import RunOptions, shard

left = int(sys.argv[3])


def watch(event, given):
    global left
    if event in ("os.rename", "os.remove", "shutil.rmtree"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


sys.addaudithook(watch)
shard(TextSpec(**json.loads(sys.argv[1])), Path(sys.argv[2]), True, RunOptions(workers=1))
