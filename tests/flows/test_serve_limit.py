"""The spend limit of a service: a typed limit overrides the file, and a rented service always has a limit."""

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from tests.world import ROOT

FILE = "examples/service.yaml"  # has a limit of 50 USD


def planned(tmp_path, provider="runpod", **flags) -> serve.Revision:
    environ = {
        "SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"),
        "HOME": str(tmp_path),
        "RUNPOD_API_KEY": "x" * 32,
        "SLIPWAY_RUNPOD_URL": "http://127.0.0.1:9",
    }
    settings = Settings.load(ROOT, {"provider": provider}, environ=environ)
    spec = ServeSpec(name="demo", model="hf://user/repo", engine="torch", provider=provider, config=FILE, **flags)
    with Journal.open(settings.state_file, environ) as journal:
        return serve.plan(spec, journal, settings, print)


def test_a_typed_limit_of_a_service_overrides_its_file(tmp_path):
    assert planned(tmp_path).version.service.slipway.spend_limit == 50
    assert planned(tmp_path, spend_limit="$7.5").version.service.slipway.spend_limit == "$7.5"


@pytest.mark.parametrize(("said", "why"), [("0", "give an amount above 0"), ("-1", "--spend-limit: "),
                                           ("much", "'much' is not an amount of dollars")])  # fmt: skip
def test_an_invalid_limit_of_a_service_is_refused(said, why, tmp_path):
    with pytest.raises(UsageError, match=why):
        planned(tmp_path, spend_limit=said)


def test_a_service_on_this_machine_costs_nothing(tmp_path):
    with pytest.raises(UsageError, match="--spend-limit applies to rented machines; this machine costs nothing"):
        planned(tmp_path, "local", spend_limit="5")
