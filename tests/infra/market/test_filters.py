"""Offers that satisfy a request; without a match, the reason and a request that would match."""

import pytest

from infra.market.filters import explain, satisfying
from infra.records import Offer, Request

GB = 10**9


def offer(provider="shadeform", gpu="B200", num_gpus=8, usd=33.6, **about):
    about.setdefault("offer_id", f"{provider}-{gpu}-{num_gpus}-{usd}")
    return Offer(provider=provider, gpu=gpu, num_gpus=num_gpus, micro_usd_per_hour=round(usd * 10**6), **about)


MEMORY = {"gpu_memory_bytes": 180 * GB, "memory_bytes": 2000 * GB, "cpus": 192, "disk_bytes": 1000 * GB}
HYPERSTACK = offer(cloud="hyperstack", region="canada-1", country="CA", instance_type="B200x8", **MEMORY)
DATACRUNCH = offer(
    usd=35.84, cloud="datacrunch", region="FIN-01", country="FI", city="Helsinki", interconnect="infiniband"
)
LIUM = offer("lium", usd=52.0, country="US", upload_mbps=910.4, download_mbps=2350.0)
SINGLE = offer("lium", "H100-SXM", 1, 2.24, country="US")
SPOT = offer("runpod", "A100-80GB-SXM", 1, 0.79, spot=True)
OWN = offer("ssh", "H100-PCIe", 2, 0, place="lab/box")
CPUS = offer("shadeform", "", 0, 99.0, cpus=8, upload_mbps=1.0, download_mbps=1.0)
ALL = (LIUM, DATACRUNCH, SINGLE, SPOT, HYPERSTACK, OWN)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, [OWN, SINGLE, HYPERSTACK, DATACRUNCH, LIUM]),
        ({"gpu": "B200"}, [HYPERSTACK, DATACRUNCH, LIUM]),
        ({"gpu": "b200", "num_gpus": 8, "max_micro_usd_per_hour": 35_840_000}, [HYPERSTACK, DATACRUNCH]),
        ({"gpu": "A100:1,H100:1"}, [OWN, SINGLE]),
        ({"gpu": "A100:1,H100:1", "spot": True}, [SPOT]),
        ({"gpu": "H100", "num_gpus": 2}, [OWN]),
        ({"gpu": "H100:8,B200:8"}, [HYPERSTACK, DATACRUNCH, LIUM]),
        ({"num_gpus": 4}, []),
        ({"cpus": 16}, [HYPERSTACK]),
        ({"memory_bytes": 128 * GB, "disk_bytes": 100 * GB, "gpu_memory_bytes": 180 * GB}, [HYPERSTACK]),
        ({"gpu_memory_bytes": 181 * GB}, []),
        ({"country": "fi", "city": "helsinki"}, [DATACRUNCH]),
        ({"cloud": "hyperstack", "region": "canada-1", "instance_type": "B200x8"}, [HYPERSTACK]),
        ({"upload_mbps": 900, "download_mbps": 2000}, [LIUM]),
        ({"upload_mbps": 911}, []),
        ({"without_gpu": True}, [CPUS]),
        ({"network": "best"}, [DATACRUNCH]),
    ],
    ids=str,
)
def test_each_filter_keeps_matching_offers_in_order_of_price(wanted, found):
    assert satisfying(Request(run="x", **wanted), (*ALL, CPUS) if "without_gpu" in wanted else ALL) == found


def test_a_request_without_match_shows_failures_per_filter_and_the_filter_to_relax():
    request = Request(run="x", gpu="B200", num_gpus=8, max_micro_usd_per_hour=20_000_000)
    said = explain(request, ALL).splitlines()
    assert said[0] == "none of 6 offers matches"
    assert said[1:5] == [
        "  3 of 6 fail --gpu B200",
        "  3 of 6 fail --num-gpus 8",
        "  1 of 6 fail without --use-spot",
        "  3 of 6 fail --max-price 20.00",
    ]
    assert said[5:7] == [
        "closest",
        "  shadeform hyperstack canada-1 B200x8, 8 x B200, 33.60 USD/h: fails --max-price 20.00",
    ]
    assert said[-1] == "try: --max-price 33.60"


@pytest.mark.parametrize(
    ("wanted", "relaxed"),
    [
        ({"gpu": "B200", "cpus": 500}, "try: --cpus 192"),
        ({"gpu": "H100", "num_gpus": 8}, "try: --num-gpus 1 or --num-gpus 2"),
        ({"gpu": "A100"}, "try: --use-spot; or --gpu H100-PCIe,H100-SXM,B200"),
        ({"gpu": "B200", "spot": True}, "try: leave out --use-spot; or --gpu A100-80GB-SXM"),
        ({"gpu": "B200", "city": "Oslo"}, "try: --city Helsinki"),
        (
            {"gpu": "H100", "cpus": 4, "max_micro_usd_per_hour": 10**9},
            "try: leave out --cpus (not published for these offers)",
        ),
        ({"gpu": "MI300X", "num_gpus": 8}, "try: --gpu B200"),
        (
            {"gpu": "H100", "network": "best"},
            "try: leave out network_tier (vendors do not publish the network of their machines)",
        ),
    ],
    ids=str,
)
def test_the_filter_to_relax_is_the_filter_failed_by_the_closest_offers(wanted, relaxed):
    request = Request(run="x", **wanted)
    assert satisfying(request, ALL) == []
    assert explain(request, ALL).splitlines()[-1].split("; or ")[: relaxed.count("; or ") + 1] == relaxed.split("; or ")


def test_bandwidth_is_relaxed_first_if_only_bandwidth_excludes_the_gpu():
    """Other GPUs fail one filter; the requested GPU fails both directions of an unknown bandwidth."""
    untold, slow = offer("lium", "A100-80GB-SXM", usd=11.0), offer("lium", "A100-80GB-SXM", usd=12.0, upload_mbps=200.0)
    other = offer("lium", "RTX4090", usd=3.0, upload_mbps=900.0, download_mbps=900.0)
    request = Request(run="x", gpu="A100", num_gpus=8, upload_mbps=500, download_mbps=500)
    said = explain(request, (untold, slow, other)).splitlines()
    assert said[-1] == (
        "try: --min-upload-mbps 200 and leave out --min-download-mbps: the speed of these offers is unknown; or "
        "--gpu RTX4090"
    )
    assert "A100" in said[said.index("closest") + 1]


def test_the_suggested_request_works():
    request = Request(run="x", gpu="B200", num_gpus=8, max_micro_usd_per_hour=33_600_000)
    assert satisfying(request, ALL) == [HYPERSTACK]


def test_a_market_without_offers_is_reported():
    assert explain(Request(run="x"), ()) == "the vendors offer no machines at all"


def test_an_unavailable_speed_is_relaxed_to_the_fastest_and_an_unknown_speed_is_omitted():
    wanted = Request(run="x", gpu="B200", upload_mbps=1000)
    assert explain(wanted, [LIUM, HYPERSTACK]).endswith("try: --min-upload-mbps 910")
    assert explain(wanted, [HYPERSTACK]).endswith(
        "try: leave out --min-upload-mbps: the speed of these offers is unknown"
    )


@pytest.mark.parametrize(
    ("gpu", "meant"), [("H1000", "H100"), ("B2000:8", "B200"), ("4090", "RTX4090"), ("potato", ""), ("H100", "")]
)
def test_an_unknown_kind_of_gpu_gets_the_nearest_name(gpu, meant):
    said = explain(Request(run="a-1", gpu=gpu), [Offer(provider="lium", offer_id="o1", gpu="A6000", num_gpus=1)])
    hint = f"{gpu.partition(':')[0]} is not in the table of GPUs; did you mean {meant}?"
    assert (hint in said) if meant else "did you mean" not in said
