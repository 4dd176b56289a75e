"""Own machines. What each command does stands in a file of its own."""

from scripts.cli.command import command


@command("scripts.pools.list", "scripts.pools.flags:ListFlags", name="list", world="", example="inv pool.list")
def list_(c, spec):
    """List own machines: GPUs, price, and which run has each.

    This comes from the inventory; no machine is contacted.
    """


@command("scripts.pools.up", "scripts.pools.flags:UpFlags", world="", example="inv pool.up")
def up(c, spec):
    """Look at every own machine, and remember what it has.

    That is CPUs, memory, disk, GPUs, Python, rsync and uv. It is safe to repeat.
    """


@command("scripts.pools.check", "scripts.pools.flags:CheckFlags", world="", example="inv pool.check")
def check(c, spec):
    """Check that own machines can be reached.

    It also checks that only its owner can read each key.
    """


@command(
    "scripts.pools.import_hosts",
    "scripts.pools.flags:ImportFlags",
    name="import",
    world="",
    example="inv pool.import --from terraform.json --user ubuntu",
)
def import_(c, spec):
    """Add machines that Terraform made to the inventory.

    Existing entries and comments stay.
    """


@command("scripts.pools.hosts", "scripts.pools.flags:HostsFlags", world="", example="inv hosts")
def hosts(c, spec):
    """List machines that failed and are no longer offered.

    It shows the reason and the time.
    """
