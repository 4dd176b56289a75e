"""Renting: what the vendors have, and what it costs. What these do stands in `offers.py`."""

from scripts.program import command

MACHINE = {
    "gpu": "kind of GPU, or any of a set: A100:1,A100-80GB:1,H100:1",
    "num-gpus": "GPUs of each pod",
    "all-configs": "any number of GPUs, whatever --num-gpus and the set say",
    "cpus": "at least so many: 16 or 16+",
    "memory": "at least so many GB: 128 or 128+",
    "disk-size": "at least so many GB: 100 or 100+",
    "country": "two letters: NL",
    "city": "where the machine stands",
    "cloud": "whose machine, or which tier: hyperstack, SECURE",
    "region": "as the vendor spells it: canada-1",
    "instance-type": "as the vendor spells it: B200x8",
    "min-upload-mbps": "measured upload, megabits per second",
    "min-download-mbps": "measured download, megabits per second",
    "use-spot": "machines that may be taken away, which cost less",
    "max-price": "US dollars per hour of the whole machine",
    "network": "best: made for traffic between machines (InfiniBand and the like)",
}  # what kind of machine is wanted


@command(
    "scripts.offers",
    help={
        "provider": "only runpod, lium, shadeform, or ssh (own machines)",
        **MACHINE,
        "json": "one JSON document on stdout",
    },
)
def offers(
    c, provider="", gpu="", num_gpus=0, all_configs=False, cpus="", memory="", disk_size="", country="", city="",
    cloud="", region="", instance_type="", min_upload_mbps=0, min_download_mbps=0, use_spot=False, max_price="",
    network="", json=False,
):  # fmt: skip
    """What can be rented now, by price: all vendors whose key is set, and own machines."""
