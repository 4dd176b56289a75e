"""Renting: what the vendors have, and what it costs. What these do stands in `offers.py`."""

from scripts.cli.flag_help import MACHINE
from scripts.cli.invoke_patch import command


@command(
    "scripts.market.offers",
    world="begin",
    help={
        "provider": "only runpod, lium, shadeform, or ssh (own machines)",
        **MACHINE,
        "json": "one JSON document on stdout",
    },
)
def offers(
    c, provider="", gpu="", num_gpus=0, all_configs=False, cpus="", memory="", disk_size="", country="", city="",
    cloud="", region="", instance_type="", min_upload_mbps=0, min_download_mbps=0, use_spot=False, max_price="",
    network="", volume="", json=False,
):  # fmt: skip
    """List what can be rented now, by price.

    Every vendor whose key is set is asked, and own machines.
    """


@command(
    "scripts.market.audit",
    help={
        "provider": "only runpod, lium or shadeform",
        "kill": "end our orphans, and wait until the vendor has let go of them; with a NAME or id: only that machine, "
        "which may be of another installation of yours",
        "json": "one JSON document on stdout",
    },
    optional=["kill"],
)
def audit(c, provider="", kill=None, json=False):
    """List every machine in every account, and whose it is.

    It is ours, an orphan, or somebody else's. The exit code is 5 when an orphan bills.
    """


@command(
    "scripts.market.audit",
    help={"provider": "only runpod, lium or shadeform", "json": "one JSON document on stdout"},
)
def reap(c, provider="", json=False):
    """Clear up now: adopt what got lost, end what is due.

    A deletion that failed is tried again. The exit code is 5 while something still bills.
    """


@command(
    "scripts.market.cost",
    world="begin",
    word="run",
    iterable=["e"],
    help={
        "month": "only what was spent in it: 2026-11",
        "offline": "do not ask the vendors for their bills",
        "estimate": "what work would cost, instead of what was spent",
        "phase": "estimate: mid, sft, rl, a sum of them, or all",
        "stage": "estimate: 2 or 3, of the 1.58-bit training",
        "job": "estimate: dlm, the diffusion model",
        "tokens": "estimate: how many are trained on",
        "e": "estimate: TOKENS=N, as SkyPilot spells it",
        "gpu": "estimate: kind of GPU, or several to compare: H100,B200",
        "num-gpus": "estimate: GPUs in the one pod",
        "hours": "estimate: how long it takes, when you know",
        "price": "estimate: US dollars per GPU-hour instead of what is offered now",
        "use-spot": "estimate: at the price of machines that may be taken away",
        "provider": "estimate: only at runpod, lium or shadeform",
        "json": "one JSON document on stdout",
    },
)
def cost(
    c, run="", month="", offline=False, estimate=False, phase="", stage="", job="", tokens: float | None = None, e=None,
    gpu="", num_gpus=0, hours: float | None = None, price="", use_spot=False, provider="", json=False,
):  # fmt: skip
    """Show what was spent, or estimate what work would cost.

    What was spent is shown by pod, run and month, as quoted and as billed.
    """


@command(
    "scripts.pods.apply",
    world="begin",
    word="file",
    help={
        "file": "YAML: `pods:` and below it `- name: a`; inv config --schema pod names all keys",
        "provider": "of pods whose lines name none",
        "dry-run": "show what would be made, kept and ended, and stop",
        "yes": "ask nothing",
        "json": "one JSON document on stdout",
    },
)
def apply(c, file="", provider="", dry_run=False, yes=False, json=False):
    """Make and end pods until they are what a file says.

    Missing pods are made, those that are there are kept, extra ones are ended.
    """
