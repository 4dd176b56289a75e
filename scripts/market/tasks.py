"""Renting: what the vendors have, and what it costs. What these do stands in `offers.py`."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.market.offers",
    "scripts.market.flags:OffersFlags",
    world=BEGIN,
    example="inv offers --gpu H100,H200 --num-gpus 8",
)
def offers(c, spec):
    """List what can be rented now, by price.

    Every vendor with a key is asked; own machines are listed too.
    """


@command("scripts.market.audit", "scripts.market.flags:AuditFlags", example="inv audit")
def audit(c, spec):
    """List every machine in every account, and whose it is.

    Each machine is ours, an orphan, or somebody else's. The exit code is 5 when an orphan bills.
    """


@command("scripts.market.reap", "scripts.market.flags:ReapFlags", example="inv reap")
def reap(c, spec):
    """Clean up now: adopt lost pods, end those that are due.

    Failed deletions are retried. The exit code is 5 while something still bills.
    """


@command(
    "scripts.market.cost",
    "scripts.market.flags:CostFlags",
    world=BEGIN,
    example="inv cost --estimate --phase sft --gpu H100,B200",
)
def cost(c, spec):
    """Show what was spent, or estimate what work would cost.

    Costs are shown by pod, run and month, as quoted and as billed. --accuracy compares forecast times and prices with
    the actual ones.
    """
