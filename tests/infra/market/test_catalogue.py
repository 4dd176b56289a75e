"""Prices without an account: each line has a date, and saved prices replace the shipped prices."""

import re

import pytest

from infra.errors import UsageError
from infra.market import catalogue, gpus
from infra.market.filters import satisfying
from infra.records import Offer, Request
from scripts.market.offers_table import catalogue_table

NOW = 1_795_000_000.0  # 2026-11-18


def test_every_shipped_line_is_illustrative_and_dated(tmp_path):
    found = catalogue.read(tmp_path / "none.json")
    assert {one.offer.provider for one in found} == {"runpod", "lium", "shadeform"}
    assert all(re.fullmatch(r"2026(-\d\d)?, illustrative", one.label) for one in found)
    lines = catalogue_table(found).splitlines()[1:]
    assert len(lines) > 50 and all("illustrative" in line and len(line) <= 90 for line in lines)
    known = {one.name for one in gpus.GPUS}
    assert all(any(gpus.is_asked(one.offer.gpu, name) for name in known) for one in found)
    eight = satisfying(Request(run="x", gpu="H100", num_gpus=8), [one.offer for one in found])
    assert [one.micro_usd_per_hour for one in eight if one.provider == "runpod"] == [15_920_000, 21_520_000]


def test_saved_prices_replace_the_prices_of_answering_vendors(tmp_path):
    own = tmp_path / "prices.json"
    offers = [
        Offer(provider="lium", offer_id=f"m{n}", gpu="H100-SXM", num_gpus=8, micro_usd_per_hour=9_990_000, region="US")
        for n in range(3)
    ]
    assert catalogue.save(own, [*offers, Offer(provider="ssh", offer_id="mine")], {"lium"}, NOW) == 1
    found = catalogue.read(own)
    assert {one.label for one in found if one.offer.provider == "lium"} == {"2026-11-18, saved"}
    assert all(one.is_illustrative for one in found if one.offer.provider != "lium")
    assert [one.offer.micro_usd_per_hour for one in catalogue.read(own, "lium")] == [9_990_000]
    catalogue.save(
        own,
        [Offer(provider="runpod", offer_id="x", gpu="B200", num_gpus=1, micro_usd_per_hour=1)],
        {"runpod"},
        NOW + 86400,
    )
    assert {one.label for one in catalogue.read(own) if not one.is_illustrative} == {
        "2026-11-18, saved",
        "2026-11-19, saved",
    }


@pytest.mark.parametrize("text", ["", "{}", "[{}]", '[{"provider": "x"', '[{"provider": 3}]'])
def test_a_damaged_file_is_named_with_a_remedy(tmp_path, text):
    (tmp_path / "prices.json").write_text(text)
    with pytest.raises(UsageError, match=r"prices\.json.*inv offers --save"):
        catalogue.read(tmp_path / "prices.json")
