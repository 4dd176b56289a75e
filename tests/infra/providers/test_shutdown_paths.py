"""The text of a plan about pods without a supervisor."""

import pytest

from infra.agent.job import Limits
from infra.providers import Abilities, market
from infra.providers.shutdown_paths import caveats_of, unattended_ends
from infra.selection import registry
from infra.settings import VENDORS, Settings
from store import packs
from tests.world import ROOT

BOTH = Limits(time_s=7200, spend_micro_usd=3_000_000, micro_usd_per_hour=1_000_000)
GUARD = "ends when 3.00 USD are spent or 2 h 00 min have passed (2.00 USD): the pod's guard saves"


@pytest.mark.parametrize(("name", "limits", "said"), [
    ("runpod", BOTH, f"{GUARD}, stops work and deletes the pod; else the dead-man timer in the container after "
     "2 h 00 min"),
    ("lium", BOTH, f"{GUARD} and stops work; else lium's own timer after 2 h 00 min"),
    ("shadeform", BOTH, f"{GUARD} and stops work; else shadeform's own limit of 3.00 USD or shadeform's own timer "
     "after 2 h 00 min"),
    ("lium", Limits(spend_micro_usd=2_500_000, micro_usd_per_hour=1_000_000),
     "ends when 2.50 USD are spent: the pod's guard saves and stops work; else lium's own timer after 2 h 30 min"),
    ("lium", Limits(), "bills until inv runs"),
])  # fmt: skip
def test_the_plan_names_the_end_of_a_pod_per_vendor_while_the_laptop_is_off(name, limits, said, tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), **dict.fromkeys(VENDORS.values(), "x" * 32)}
    environ = {key.upper(): value for key, value in environ.items()}
    vendor = market(registry.provider(Settings.load(ROOT, environ=environ), name))
    assert vendor and unattended_ends(name, vendor.can, limits) == f"a pod at {name} {said}"


def test_a_plan_states_that_a_separately_billed_volume_is_not_counted():
    apart = Abilities(volumes=("/mnt/*",), volumes_apart=True)
    (said,) = caveats_of("lium", apart, apart, "vol-1")
    assert "bills the volume vol-1 separately" in said and caveats_of("lium", apart, apart) == []
    assert caveats_of("shadeform", Abilities(), Abilities(), "vol-1") == []


def test_the_plan_names_the_end_of_a_hung_machine_without_a_vendor_timer(monkeypatch):
    can = Abilities(start_timer=True, self_terminate="pod_credential")
    monkeypatch.setattr(packs, "installed", lambda: {})
    assert "while the laptop is off. A shorter limit" in caveats_of("runpod", can, can)[-1]
    for who in ("the launch while running on this machine", "the supervisor of this machine; neither works"):
        assert who in caveats_of("runpod", can, can)[-1]
