"""Filters of machines as the user's own code: input from the vendor, and reports of any failure."""

import copy
import json
from dataclasses import replace

import pytest

from flows.planning import extensions as recorded
from infra.errors import UsageError
from infra.market import filters
from infra.market.filters import explain, satisfying
from infra.providers import by_name
from infra.records import Offer, Request
from infra.selection import choose
from infra.selection.machine_spec import MachineSpec, request_on
from infra.settings import Settings
from store.extensions import _used
from tests.world import ROOT, World

STEADY = ROOT / "examples" / "own" / "steady.py"


@pytest.fixture(autouse=True)
def as_before():
    used = dict(_used)
    yield
    _used.clear()
    _used.update(used)


def offer(name, score, usd=1.0, driver="580.65"):
    raw = {"reliability_score": score, "specs": {"gpu": {"driver": driver}}}
    return Offer(
        provider="lium",
        offer_id=name,
        gpu="H100",
        num_gpus=1,
        micro_usd_per_hour=round(usd * 10**6),
        raw=json.dumps(raw),
    )


def settings_of(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    words = ",".join([str(STEADY), *(str(tmp_path / f"{name}.py") for name in files)])
    return Settings.load(tmp_path, {}, environ={"SLIPWAY_EXTENSIONS": words, "HOME": str(tmp_path)})


def wanted(name, settings):
    by_name.use_filter(name, settings)
    return Request(run="r", machine_filter=name)


def test_the_example_filters_by_vendor_facts_and_counts_refusals(tmp_path):
    request = wanted("steady", settings_of(tmp_path))
    kind = Offer(provider="runpod", offer_id="kind", gpu="H100", num_gpus=1)  # one machine without facts
    old, bad, good = offer("old", 99, driver="550.1"), offer("bad", 80), offer("good", 97.2)
    assert satisfying(request, [old, bad, good, kind]) == [good]
    said = explain(request, [old, bad, kind])
    assert "3 of 3 fail --machine-filter steady" in said and "try: leave out --machine-filter" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def filter(offer, facts):\n    return facts['no such']\n", "odd.py:2: KeyError: 'no such' (for lium one)"),
        ("def filter(offer, facts):\n    raise SystemExit(3)\n", "odd.py:2: SystemExit: 3"),
        ("def filter(offer, facts):\n    return offer.gpu\n", "odd.py:1: returned 'H100'; expected True or False"),
        ("def filter(offer, facts):\n    while True: pass\n", "no answer in 0.2 s"),
        ("raise ValueError('at once')\ndef filter(offer, facts): ...\n", "odd.py:1: ValueError: at once"),
    ],
    ids=["a key that is not there", "an exit", "a word", "for ever", "at import"],
)
def test_any_failure_of_a_filter_is_reported_with_its_line(text, told, tmp_path, monkeypatch):
    monkeypatch.setattr(filters, "LONGEST_S", 0.2)
    if "while" in text:  # the thread continues, and must not keep this process busy
        text = text.replace("while True: pass", "import time; time.sleep(5)")
    request = wanted("odd", settings_of(tmp_path, odd=text))
    with pytest.raises(UsageError) as raised:
        satisfying(request, [offer("one", 99)])
    assert told in str(raised.value)


def test_a_missing_or_unusable_filter_is_refused(tmp_path):
    settings = settings_of(tmp_path, bare="def filter(machine): ...\n", other="def source(): ...\n")
    with pytest.raises(
        UsageError, match="--machine-filter stedy: no extension has this name; SLIPWAY_EXTENSIONS has steady"
    ):
        by_name.use_filter("stedy", settings)
    with pytest.raises(UsageError, match=r"has no function filter\(offer, facts\)"):
        by_name.use_filter("other", settings)
    with pytest.raises(UsageError, match=r"bare.py:1: filter\(machine\) cannot be called as filter\(offer, facts\)"):
        by_name.use_filter("bare", settings)

    class Here:
        name, is_rented, recovers = "ssh", False, False

    with pytest.raises(UsageError, match="--machine-filter steady: ssh does not list single machines"):
        request_on([Here()], MachineSpec(machine_filter="steady"), "r")


def test_the_receipt_of_a_run_has_the_hash_of_its_filter(tmp_path):
    settings = settings_of(tmp_path)
    (code,) = recorded.of_job({}, "lium", settings, "steady")
    assert (code["name"], code["kind"], code["word"]) == ("steady", "filter", str(STEADY))


@pytest.mark.process
def test_offers_plans_and_keepers_use_only_machines_accepted_by_the_filter(shared, tmp_path):
    """The cheapest machine of the rehearsed market is in a different city."""
    far = tmp_path / "far.py"
    far.write_text("def filter(offer, facts):\n    return (facts.get('location') or {}).get('city') == 'Sydney'\n")
    environ = {**shared.user.extra, "SLIPWAY_EXTENSIONS": str(far)}
    user = copy.copy(shared)
    user.user = World(shared.user.folder, environ)
    every = shared.json("offers", "--provider", "lium", "--gpu", "B200", "--num-gpus", "1")["offers"]
    found = user.json("offers", "--provider", "lium", "--gpu", "B200", "--machine-filter", "far")["offers"]
    assert every[0]["city"] != "Sydney" and found and {one["city"] for one in found} == {"Sydney"}

    launch = ("launch", "--phase", "base", "--provider", "lium", "--gpu", "B200", "--num-gpus", "1", "--dry-run")
    code, said = user.fails(*launch, "--machine-filter", "far")
    assert code == 0 and "Sydney" in said and "Dallas" not in said
    code, said = user.fails(*launch, "--machine-filter", "near")
    assert code == 2 and "--machine-filter near: no extension has this name; SLIPWAY_EXTENSIONS has far" in said

    request = Request(run="r", provider="lium", gpu="B200", num_gpus=1, machine_filter="far")
    (kept, *_) = choose.find_payable(request, replace(user.settings, extensions=str(far)), print)
    assert kept.city == "Sydney"
    with pytest.raises(UsageError, match="--machine-filter far: no extension has this name"):
        choose.find_payable(request, user.settings, print)
