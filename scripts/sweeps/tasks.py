"""Many runs in one command. What this does stands in `sweep.py`."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.sweeps.sweep",
    "scripts.sweeps.flags:SweepFlags",
    env=True,
    world=BEGIN,
    example="inv sweep examples/sweeps/rates.yaml --provider local",
    rents=True,
)
def sweep(c, spec):
    """Run many trainings on several pods, and compare them.

    Run it again to continue with what is missing.
    """
