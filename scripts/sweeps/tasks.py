"""Many runs in one command. What this does stands in `sweep.py`."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.sweeps.sweep",
    "scripts.sweeps.flags:SweepFlags",
    env=True,
    world=BEGIN,
    speed=20.0,  # the runs of a sweep take their real time, which must not use up the limits of its pods
    example="inv sweep examples/sweeps/rates.yaml --provider local",
    rents=True,
)
def sweep(c, spec):
    """Run many trainings on several pods, and compare them.

    Run it again to continue with what is missing.
    """
