"""Own machines. What these do stands in `machines.py`."""

from scripts.cli.invoke_patch import command


@command(
    "scripts.pools.machines",
    world="",
    name="list",
    word="pool",
    help={"pool": "one pool, or one machine", "json": "one JSON document on stdout"},
)
def list_(c, pool="", json=False):
    """The machines of the inventory: GPUs, price, and which run has each. Asks nobody."""


@command(
    "scripts.pools.machines",
    world="",
    word="pool",
    help={"pool": "one pool, or one machine", "json": "one JSON document on stdout"},
)
def up(c, pool="", json=False):
    """Look at every machine: CPUs, memory, disk, GPUs, Python, rsync, uv; remember it. May be repeated."""


@command(
    "scripts.pools.machines",
    world="",
    word="pool",
    help={"pool": "one pool, or one machine", "json": "one JSON document on stdout"},
)
def check(c, pool="", json=False):
    """Whether each machine can be reached, and its key is for its owner only."""


@command(
    "scripts.pools.machines",
    world="",
    name="import",
    help={
        "from": "a file of `terraform output -json`, `terraform show -json`, or a state file",
        "output": "only this output of it",
        "pool": "where the machines go",
        "user": "who logs in there, for a new pool",
        "key": "the private key, for a new pool",
        "dry-run": "show the new lines and write nothing",
        "json": "one JSON document on stdout",
    },
)
def import_(c, from_="", output="", pool="terraform", user="", key="", dry_run=False, json=False):
    """Add the machines that Terraform made to the inventory; what is there stays, comments too."""


@command(
    "scripts.pools.machines",
    world="",
    word="forget",
    iterable=["forget"],
    help={"forget": "a machine that may be offered again; repeatable", "json": "one JSON document on stdout"},
)
def hosts(c, forget=None, json=False):
    """Machines that failed and are not offered any more, why, and since when."""
