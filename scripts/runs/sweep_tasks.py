"""Many runs in one command. What this does stands in `sweep.py`."""

from scripts.cli.command import command


@command(
    "scripts.runs.sweep",
    "scripts.runs.flags:SweepFlags",
    env=True,
    example="inv sweep examples/sweep.yaml --pods 2 --dry-run",
)
def sweep(c, spec):
    """Run the launches of a file on several pods at once.

    Each pod takes one at a time. Run it again to go on with what is missing.
    """
