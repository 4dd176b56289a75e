"""Own machines. What these do stands in `machines.py`."""

from scripts.cli.command import command


@command("scripts.pools.machines", "scripts.pools.flags:ListFlags", name="list", world="", example="inv pool.list")
def list_(c, spec):
    """List own machines: GPUs, price, and which run has each.

    The inventory says so; no machine is asked.
    """


@command("scripts.pools.machines", "scripts.pools.flags:UpFlags", world="", example="inv pool.up")
def up(c, spec):
    """Look at every own machine, and remember what it has.

    That is CPUs, memory, disk, GPUs, Python, rsync and uv. It may be repeated.
    """


@command("scripts.pools.machines", "scripts.pools.flags:CheckFlags", world="", example="inv pool.check")
def check(c, spec):
    """Check that own machines can be reached.

    Also that the key of each can be read by its owner only.
    """


@command(
    "scripts.pools.machines",
    "scripts.pools.flags:ImportFlags",
    name="import",
    world="",
    example="inv pool.import --from terraform.json --user ubuntu",
)
def import_(c, spec):
    """Add machines that Terraform made to the inventory.

    What is there stays, comments too.
    """


@command("scripts.pools.machines", "scripts.pools.flags:HostsFlags", world="", example="inv hosts")
def hosts(c, spec):
    """List machines that failed and are not offered any more.

    It says why, and since when.
    """
