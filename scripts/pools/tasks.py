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
    """List own machines: GPUs, price, and which run has each.

    The inventory says so; no machine is asked.
    """


@command(
    "scripts.pools.machines",
    world="",
    word="pool",
    help={"pool": "one pool, or one machine", "json": "one JSON document on stdout"},
)
def up(c, pool="", json=False):
    """Look at every own machine, and remember what it has.

    That is CPUs, memory, disk, GPUs, Python, rsync and uv. It may be repeated.
    """


@command(
    "scripts.pools.machines",
    world="",
    word="pool",
    help={"pool": "one pool, or one machine", "json": "one JSON document on stdout"},
)
def check(c, pool="", json=False):
    """Check that own machines can be reached.

    Also that the key of each can be read by its owner only.
    """


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
    """Add machines that Terraform made to the inventory.

    What is there stays, comments too.
    """


@command(
    "scripts.pools.machines",
    world="",
    word="forget",
    iterable=["forget"],
    help={"forget": "a machine that may be offered again; repeatable", "json": "one JSON document on stdout"},
)
def hosts(c, forget=None, json=False):
    """List machines that failed and are not offered any more.

    It says why, and since when.
    """
