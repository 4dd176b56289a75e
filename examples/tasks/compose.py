"""Custom tasks built from tasks of Slipway: shard data, then plan a training; all tasks of Slipway stay available.

./inv --search-root examples/tasks --collection compose plan
./inv --search-root examples/tasks --collection compose slipway.status
"""

from invoke import Collection, call, task

import tasks
from scripts.data.shard import shard
from scripts.runs.launch import launch


@task(help={"out": "folder of the shards"})
def shards(c, out="var/datasets/compose"):
    """Shard 300 documents of Python's documentation."""
    shard(c, mode="smoke", source="pydocs", take=300, out=out)


@task(pre=[call(shard, mode="smoke", source="pydocs", take=300, out="var/datasets/compose")])
def plan(c):
    """Shard 300 documents, then show the plan of a training on this machine."""
    launch(c, provider="local", phase="sft", profile="tiny", dry_run=True)


namespace = Collection(shards, plan)
namespace.add_collection(Collection.from_module(tasks), name="slipway")
