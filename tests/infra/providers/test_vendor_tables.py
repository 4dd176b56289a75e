"""Every table with an entry per vendor has an entry for each vendor of the settings."""

import json
from typing import get_args

import pytest

from flows.installation import doctor, first_keys
from infra.ledger import spend
from infra.providers import TIMER_GRAIN_S, by_name
from infra.rehearsal import faults, records, world
from infra.settings import VENDORS
from scripts.project.dev_environment import ROOT
from tests.faults import rented

TABLES = {
    "class": by_name.PROVIDERS,
    "name of inv init": first_keys.NAMES,
    "dashboard": doctor.DASHBOARDS,
    "rehearsed server": world.VENDORS,
    "path of the rehearsed server": world.PATHS,
    "rehearsed terms": records.TERMS,
    "faults": get_args(faults.VendorName),
    "rigs": rented.VENDORS,
    "billing unit": spend.GRAIN_S,
    "timer": [*TIMER_GRAIN_S, "runpod"],  # RunPod has no timer; the container has a timer
    "prices": {one["provider"] for one in json.loads((ROOT / "infra/market/catalogue.json").read_text())},
    "rehearsed offers": {one["vendor"] for one in json.loads((ROOT / "infra/rehearsal/offers.json").read_text())},
}


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_an_entry_for_every_vendor(table):
    assert not VENDORS.keys() - set(TABLES[table])
