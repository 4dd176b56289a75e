"""`inv offers`: one table of vendors and own machines, in a separate process with real servers."""

import json
import sys
import threading

import pytest

from infra.errors import NoOffer, SlipwayError, UsageError
from infra.market import gpus
from infra.providers.by_name import open_market
from infra.providers.json_api import JsonApi
from infra.providers.offers import OfferSource, require, sources, survey
from infra.providers.pod_keys import PodKeys
from infra.providers.shadeform import Shadeform
from infra.records import Offer, Request
from infra.selection.machine_spec import MachineSpec, at_least, at_least_bytes, request_for
from infra.settings import Settings
from infra.units import dollars, micro_usd
from scripts.market.offers_table import per_gpu
from store import packs
from tests.hosts import sshd as sshd
from tests.infra.market import runpod_stand, test_lium, test_shadeform
from tests.infra.market.stand import Answer, Stand
from tests.world import ROOT, World

VENDORS = {"RUNPOD": runpod_stand, "LIUM": test_lium, "SHADEFORM": test_shadeform}


def b200(cloud, region, cents, name):
    what = {
        **test_shadeform.TYPE["configuration"],
        "gpu_type": "B200",
        "num_gpus": 8,
        "vram_per_gpu_in_gb": 192,
        "nvlink": cloud == "hyperstack",
    }
    return {
        **test_shadeform.TYPE,
        "cloud": cloud,
        "shade_instance_type": "B200x8",
        "configuration": what,
        "hourly_price": cents,
        "availability": [{"region": region, "available": True, "display_name": name}],
    }


@pytest.fixture
def vendors():
    with (
        Stand(runpod_stand.KEY, paths=["/graphql"], document=runpod_stand.DOCUMENT) as runpod,
        Stand(test_lium.KEY, document=test_lium.DOCUMENT) as lium,
        Stand(test_shadeform.KEY, document=test_shadeform.DOCUMENT) as shadeform,
    ):
        runpod.on("GET /v2/catalog/gpus", Answer(200, {"gpus": [runpod_stand.GPU]}))
        lium.on("GET /executors", Answer(200, [test_lium.HOST]))
        rows = [
            b200("tensordock", "us-east", 3840, "US, New York"),
            b200("hyperstack", "canada-1", 3360, "CA, Toronto"),
            b200("datacrunch", "FIN-01", 3584, "FI, Helsinki"),
        ]
        shadeform.on("GET /instances/types", Answer(200, {"instance_types": rows}))
        yield {"RUNPOD": runpod, "LIUM": lium, "SHADEFORM": shadeform}
        assert [stand.wrong for stand in (runpod, lium, shadeform)] == [[], [], []]


@pytest.fixture
def world(tmp_path, vendors):
    extra = {
        "SLIPWAY_POOLS": str(tmp_path / "pools.yaml"),
        "RUNPOD_API_KEY": "rp-secret",
        "LIUM_API_KEY": "li-secret",
        "SHADEFORM_API_KEY": "sf-secret",
    }
    return World(tmp_path, {**extra, **{f"SLIPWAY_{name}_URL": stand.url for name, stand in vendors.items()}})


def lines(text):
    return [line.split() for line in text.splitlines()[2:]]


@pytest.mark.process
def test_the_three_rows_are_in_order_of_price(world):
    out = world.inv("offers", "--gpu", "B200")
    assert out.startswith("=== Available B200 Instances (sorted by price) ===\n#  Provider")
    rows = [line[:9] for line in lines(out)]
    assert rows == [
        ["1", "shadeform/hyperstack", "canada-1", "8x", "B200", "192GB", "$33.60", "$4.20", "No"],
        ["2", "shadeform/datacrunch", "FIN-01", "8x", "B200", "192GB", "$35.84", "$4.48", "No"],
        ["3", "shadeform/tensordock", "us-east", "8x", "B200", "192GB", "$38.40", "$4.80", "No"],
    ]
    assert [line[9] for line in lines(out)] == ["Yes", "No", "No"]


@pytest.mark.process
def test_vendors_and_own_machines_share_a_table_and_json(world, sshd, tmp_path):
    machine = {"ip": sshd.address.host, "port": sshd.address.port, "python": sys.executable}
    pool = {"user": sshd.address.user, "identity_file": sshd.address.key, "hosts": [machine]}
    (tmp_path / "pools.yaml").write_text(json.dumps({"box": pool}))
    found = world.json("offers")
    assert found["silent"] == []
    assert [one["provider"] for one in found["offers"]][:2] == ["ssh", "runpod"]
    assert {one["provider"] for one in found["offers"]} == {"ssh", "runpod", "lium", "shadeform"}
    prices = [float(one["usd_per_hour"]) for one in found["offers"]]
    assert prices == sorted(prices) and prices[0] == 0
    lium = next(one for one in found["offers"] if one["provider"] == "lium")
    assert (lium["usd_per_hour"], lium["usd_per_gpu_hour"], lium["country"]) == ("14.00", "1.75", "US")
    assert (lium["upload_mbps"], lium["seen_at"]) == (910.4, "2026-11-20T10:12:00Z")


@pytest.mark.process
def test_filters_and_sets_reach_every_vendor(world, vendors):
    found = world.json(
        "offers", "--gpu", "A100:1,H100:8", "--min-upload-mbps", "500", "--cpus", "16+", "--memory", "128+"
    )
    assert [one["provider"] for one in found["offers"]] == ["lium"]
    assert {one.params["count"] for one in vendors["RUNPOD"].asked} == {"1", "8"}
    every = world.json("offers", "--gpu", "A100:1,H100:1", "--all-configs", "--provider", "runpod")
    assert {one["num_gpus"] for one in every["offers"]} == {1, 2, 4, 8}


@pytest.mark.process
def test_no_match_gives_exit_code_3_with_the_reasons(world):
    failed = world.json("offers", "--gpu", "B200", "--num-gpus", "8", "--max-price", "20", code=3)
    assert "fail --max-price 20.00" in failed["error"]
    assert "hyperstack canada-1" in failed["error"] and "try: --max-price 33.60" in failed["error"]


@pytest.mark.process
def test_an_unavailable_vendor_is_a_line_below_the_table(world, vendors):
    vendors["LIUM"].on("GET /executors", Answer(403, {"error": {"code": "forbidden", "message": "no scope 'read'"}}))
    process = world.run("offers", "--gpu", "H100")
    out, err = process.stdout, process.stderr
    assert process.returncode == 0 and len(lines(out)) > 3
    silent, *drills = (line for line in err.splitlines() if "unlikely to be a key" not in line)
    assert silent.startswith("lium: ") and "no scope 'read'" in silent
    if "drill" in packs.installed():
        assert drills[0].startswith("never drilled: runpod, lium, shadeform; ")


@pytest.mark.slow
def test_a_slow_vendor_delays_no_other_vendor():
    offer, ended = Offer(provider="quick", offer_id="x", micro_usd_per_hour=1), threading.Event()
    asked = [OfferSource("late", lambda _: ended.wait(60) and []), OfferSource("quick", lambda _: [offer])]
    found = survey(asked, Request(run="x"), deadline_s=0.5)
    ended.set()
    assert found.offers == (offer,)
    assert [(one.provider, str(one.error)) for one in found.failures] == [("late", "no answer in 0.5 s")]


@pytest.mark.process
def test_the_exit_code_shows_that_every_key_is_refused(world):
    world.extra.update(RUNPOD_API_KEY="x", LIUM_API_KEY="x", SHADEFORM_API_KEY="x")
    assert "Invalid API key" in world.json("offers", code=4)["error"]


@pytest.mark.process
def test_todays_prices_are_saved_and_shown_with_their_date_without_a_key(world, tmp_path):
    assert "Leave out --gpu" in world.json("offers", "--save", "--gpu", "H100", code=2)["error"]
    world.inv("offers", "--save", "--provider", "shadeform")
    for name in VENDORS:
        del world.extra[f"{name}_API_KEY"]
    found = world.json("offers", "--gpu", "B200", "--num-gpus", "8")
    assert all(f"{name}_API_KEY" in found["not_offered_now"] for name in VENDORS)
    saved = [one for one in found["offers"] if one["provider"] == "shadeform"]
    assert [one["usd_per_hour"] for one in saved] == ["33.60", "35.84", "38.40"]
    assert not any(one["illustrative"] for one in saved)
    assert all(one["illustrative"] and one["as_of"] for one in found["offers"] if one not in saved)
    process = world.run("offers", "--gpu", "H100")
    out, err = process.stdout, process.stderr
    assert process.returncode == 0 and "RUNPOD_API_KEY" in err and "inv init" in err
    assert all(line.endswith(", illustrative") for line in out.splitlines()[2:])
    assert "--max-price" in world.json("offers", "--gpu", "H100", "--max-price", "0.10", code=3)["error"]
    assert "RUNPOD_API_KEY" in world.json("offers", "--save", code=4)["error"]
    settings = Settings.load(tmp_path, environ=world.extra)
    (source,) = sources(settings, "lium")
    with pytest.raises(UsageError, match="LIUM_API_KEY"):
        source.ask(Request(run="x", gpu="H100", num_gpus=1))
    with pytest.raises(UsageError, match="known: runpod"):
        sources(settings, "aws")


@pytest.mark.parametrize(
    "flags",
    [{"cpus": "many"}, {"max_price": "cheap"}, {"gpu": "H100:"}, {"num_gpus": -1}],
    ids=str,
)
def test_meaningless_flags_are_refused(flags):
    (flag,) = flags
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')}"):
        request_for(MachineSpec(**flags))


def test_minimum_values_are_read_with_and_without_a_plus():
    assert (at_least("cpus", "16+"), at_least("cpus", "16"), at_least("cpus", "")) == (16, 16, 0)


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 0), ("64", 64 * 10**9), ("64+", 64 * 10**9), ("64GB", 64 * 10**9), ("64Gi", 64 << 30), ("64Gi+", 64 << 30),
     ("65536Mi", 64 << 30), ("1Ti", 1 << 40), ("2TB", 2 * 10**12)],
)  # fmt: skip
def test_sizes_are_read_with_and_without_kubernetes_units(text, size):
    assert at_least_bytes("memory", text) == size
    assert request_for(MachineSpec(memory=text, disk_size=text)).memory_bytes == size


@pytest.mark.parametrize("text", ["64gi", "6.5", "Gi", "64 Gi", "-1", "64m"])
def test_an_invalid_size_is_refused_with_the_list_of_units(text):
    with pytest.raises(UsageError, match=f"--memory {text}: expected a whole number of GB.*Gi"):
        at_least_bytes("memory", text)


def test_money_is_exact_and_rounded_up():
    assert [micro_usd(one) for one in ("33.60", 5, "0.0000001", "1.1950001")] == [33_600_000, 5_000_000, 1, 1_195_001]
    assert [dollars(one) for one in (33_600_000, 1_195_000, 1, 0)] == ["33.60", "1.195", "0.000001", "0.00"]
    for wrong in ("-1", "NaN", "Infinity", "1e12", "many"):
        with pytest.raises(ValueError):
            micro_usd(wrong)
    assert per_gpu(Offer(provider="x", offer_id="x", num_gpus=3, micro_usd_per_hour=1_000_000)) == "0.334"


@pytest.mark.process
def test_a_short_key_is_masked_in_refusals_but_not_in_listings(tmp_path, token):
    for short in ("sw1-", token[4:12], "a"):
        with Stand(("Authorization", f"Bearer {short}"), paths=["/graphql"], document=runpod_stand.DOCUMENT) as stand:
            environ = {
                "SLIPWAY_RUNPOD_URL": stand.url,
                "RUNPOD_API_KEY": short,
                "SLIPWAY_STATE_FILE": str(tmp_path / "j.db"),
            }
            stand.on("GET /v2/pods", Answer(200, {"pods": [runpod_stand.row(token)]}))
            stand.on("POST /graphql", Answer(200, {"data": {"myself": {"id": "u"}}}))
            stand.on("GET /v2/pods/{id}", Answer(403, {"detail": f"not with {short}!"}))
            runpod = open_market("runpod", Settings.load(ROOT, environ=environ))
            assert [one.token for one in runpod.list()] == [token]
            with pytest.raises(SlipwayError) as refused:
                runpod.find("some-id")
            assert f"{short}!" not in str(refused.value) and "***" in str(refused.value)


@pytest.mark.slow
def test_very_many_offers_are_compared_once_per_kind_and_sorted_by_price():
    many = [
        Offer(provider="m", offer_id=str(number), gpu=f"kind-{number % 7}", num_gpus=1, micro_usd_per_hour=number)
        for number in range(20_000, 0, -1)
    ]
    before = gpus.is_asked.cache_info().misses
    found = survey([OfferSource("m", lambda _: many)], Request(run="x", gpu="kind-3", num_gpus=1))
    assert (found.offers[0].offer_id, len(found.offers)) == ("3", 2_857)
    with pytest.raises(NoOffer, match="none of 20000 offers matches"):
        require(survey([OfferSource("m", lambda _: many)], Request(run="x", gpu="H100")), Request(run="x", gpu="H100"))
    typos = len(gpus.GPUS)  # the answer without a match looks for a similar name in the table
    assert gpus.is_asked.cache_info().misses - before <= 14 + 2 + typos


@pytest.mark.process
def test_a_vendor_with_a_million_offers_blocks_no_other_vendor(tmp_path):
    there = b",".join([b'{"region":"r","available":true}'] * 10**6)
    body = (
        json.dumps({"instance_types": [{**test_shadeform.TYPE, "availability": []}]})
        .encode()
        .replace(b"[]", b"[%s]" % there)
    )
    with Stand(test_shadeform.KEY, paths=["/instances/types"]) as stand:
        stand.on("GET /instances/types", Answer(200, body))
        vendor = Shadeform(JsonApi("shadeform", stand.url, dict([test_shadeform.KEY]), read_s=0.0), PodKeys(tmp_path))
        other = Offer(provider="m", offer_id="1", micro_usd_per_hour=1)
        asked = [OfferSource("shadeform", vendor.catalog), OfferSource("m", lambda _: [other])]
        found = survey(asked, Request(run="x"))
    assert found.offers == (other,) and "longer than 16 MiB" in str(found.failures[0].error)
