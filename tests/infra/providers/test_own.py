"""The provider of an extension: for any behavior of the code, only our records and errors come out."""

import dataclasses
import time

import pytest

from infra.agent.job import Limits
from infra.errors import Ambiguous, MissingKey, NoOffer, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.providers import by_name, offers
from infra.records import Offer, Request
from infra.runs import journal_upkeep
from infra.selection import registry
from infra.settings import Settings

TOKEN = "sw1-aaaaaaaa-bbbbbbbbbbbbbbbb"
HEAD = """
import time
from infra.errors import NoOffer, MissingKey
from infra.records import Account, Offer, Pod

POD = Pod(provider="somebody", pod_id="m1", token="{token}", run="r", address="", micro_usd_per_hour=10)

class Verbs:
    def account(self): return Account(provider="x", owner="me")
    def offers(self, request): return [Offer(provider="x", offer_id="o", micro_usd_per_hour=10)]
    def create(self, request, offer, token, limits): return POD
    def find(self, pod): return POD
    def list(self): return [POD]
    def delete(self, pod_id): pass

def provider(settings):
    return Verbs()
""".replace("{token}", TOKEN)


@pytest.fixture
def opened_provider(tmp_path):
    """Return a factory for the provider of a file; keyword arguments replace the valid verbs."""

    def make(more="", name="boxes", head=HEAD, ask_s=5.0):
        (tmp_path / f"{name}.py").write_text(f"{head}\n{more}\n")
        settings = settings_of(tmp_path, f"{tmp_path}/{name}.py")
        opened = registry.open_provider(name, settings)
        opened.ask_s = ask_s
        return opened

    return make


def settings_of(folder, words):
    return Settings.load(
        folder, environ={"SLIPWAY_EXTENSIONS": words, "SLIPWAY_STATE_FILE": f"{folder}/journal.db", "HOME": str(folder)}
    )


def create(provider):
    return provider.create(Request(run="r"), Offer(provider="boxes", offer_id="o"), TOKEN, Limits())


def test_records_of_an_extension_provider_have_its_name_and_count_as_rented(opened_provider):
    boxes = opened_provider()
    assert (boxes.name, boxes.is_rented, boxes.self_terminate_calls) == ("boxes", True, ())
    found = [create(boxes), boxes.find("m1"), *boxes.list(), *boxes.offers(Request(run="r")), boxes.account()]
    assert {one.provider for one in found} == {"boxes"}


@pytest.mark.parametrize("raised", ["ValueError('no')", "SystemExit(3)", "KeyboardInterrupt()", "GeneratorExit()"])
def test_any_exception_becomes_our_error_with_its_line_and_leaves_a_create_open(opened_provider, raised):
    body = f"def bad(self, *words): raise {raised}\nVerbs.create = Verbs.find = Verbs.list = Verbs.delete = bad"
    boxes = opened_provider(body)
    with pytest.raises(Ambiguous, match=r"boxes\.py:\d+: .*a machine may have been rented"):
        create(boxes)
    for ask in (boxes.list, lambda: boxes.find("m1"), lambda: boxes.delete("m1")):
        with pytest.raises(SlipwayError, match=r"boxes\.py:\d+"):
            ask()


def test_clear_errors_of_an_extension_provider_stay_unchanged(opened_provider):
    boxes = opened_provider("def no(self, *words): raise NoOffer('gone')\nVerbs.create = no")
    with pytest.raises(NoOffer, match="gone"):
        create(boxes)
    with pytest.raises(MissingKey, match="LAB_KEY"):
        opened_provider("def provider(settings): raise MissingKey('set LAB_KEY')", "keyless")


@pytest.mark.parametrize(
    ("verb", "value", "said"),
    [
        ("list", "None", "list returned nothing; expected a list of Pod"),
        ("list", "[1]", "a row of list returned an int"),
        ("list", "[POD, POD]", "has a machine twice"),
        ("find", "'m1'", "find returned a str"),
        ("find", "Pod(provider='x', pod_id='m2', token='t', run='', address='')", "asked for m1, find returned .m2"),
        ("offers", "{}", "offers returned a dict"),
        ("account", "None", "account returned nothing"),
    ],
)
def test_an_answer_of_a_wrong_type_is_refused(opened_provider, verb, value, said):
    boxes = opened_provider(f"Verbs.{verb} = lambda self, *words: {value}")
    asked = {"find": ("m1",), "offers": (Request(run="r"),)}.get(verb, ())
    with pytest.raises(SlipwayError, match=said):
        getattr(boxes, verb)(*asked)


@pytest.mark.parametrize("value", ["None", "Pod(provider='x', pod_id='m1', token='', run='', address='')", "7"])
def test_a_create_without_the_marked_pod_stays_open(opened_provider, value):
    with pytest.raises(Ambiguous, match="may have been rented"):
        create(opened_provider(f"Verbs.create = lambda self, *words: {value}"))


def test_a_verb_that_never_returns_is_abandoned(opened_provider):
    boxes = opened_provider("Verbs.list = lambda self: time.sleep(30)", ask_s=0.05)
    began = time.monotonic()
    with pytest.raises(SlipwayError, match=r"list has not answered in 0.05 s"):
        boxes.list()
    assert time.monotonic() - began < 20


def test_a_missing_or_misspelt_verb_is_named(opened_provider):
    with pytest.raises(
        UsageError, match=r"the provider has no delete; line \d+ has deleted; is this the intended method"
    ):
        opened_provider("del Verbs.delete\ndef deleted(self, pod_id): pass\nVerbs.deleted = deleted")
    with pytest.raises(UsageError, match="has no function provider"):
        opened_provider(head="def providers(settings): ...", name="other")
    with pytest.raises(UsageError, match=r"third\.py:2: ZeroDivisionError"):
        opened_provider(head="x = 1\nx / 0\ndef provider(settings): ...", name="third")


def test_an_unlisted_or_removed_provider_differs_from_a_misspelt_provider(tmp_path):
    (tmp_path / "boxes.py").write_text(HEAD)
    settings = settings_of(tmp_path, f"{tmp_path}/boxes.py")
    with pytest.raises(UsageError, match="SLIPWAY_EXTENSIONS has boxes"):
        registry.provider(settings, "boxs")
    (tmp_path / "boxes.py").unlink()
    with pytest.raises(UsageError, match=r"boxes\.py: no such file"):
        registry.provider(settings, "boxes")
    (tmp_path / "runpod.py").write_text(HEAD)
    with pytest.raises(UsageError, match="is also a provider of Slipway"):
        registry.provider(settings_of(tmp_path, f"{tmp_path}/runpod.py"), "runpod")


def test_a_rehearsal_excludes_its_machines(tmp_path):
    (tmp_path / "boxes.py").write_text(HEAD)
    settings = dataclasses.replace(settings_of(tmp_path, f"{tmp_path}/boxes.py"), rehearsal="somewhere")
    assert by_name.own_providers(settings) == ([], [])
    with pytest.raises(UsageError, match="a rehearsal simulates only vendors"):
        registry.open_provider("boxes", settings)


def test_a_dry_run_runs_only_the_code_of_reachable_providers(tmp_path):
    for name in ("near", "far"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / name)!r}, 'w').close()\n{HEAD}Verbs.list = list\n")
    settings = settings_of(tmp_path, f"{tmp_path}/near.py,{tmp_path}/far.py")
    told = []

    def has_run():
        return [name for name in ("near", "far") if (tmp_path / name).exists()]

    with Journal.open(settings.state_file) as journal:
        journal_upkeep.settle(journal, settings, told.append, own=["local"])
        assert has_run() == []
        journal_upkeep.settle(journal, settings, told.append, own=["near"])
        assert has_run() == ["near"]
        journal_upkeep.settle(journal, settings, told.append)
        assert has_run() == ["near", "far"] and all("near" in one or "far" in one for one in told), told


def test_a_sweep_continues_with_other_providers_after_any_exception(tmp_path):
    """The sweep ends an orphan in a working account, although three other files are unusable."""
    (tmp_path / "awful.py").write_text(HEAD + "\ndef bad(self): raise SystemExit\nVerbs.list = bad\n")
    (tmp_path / "broken.py").write_text("def provider(:\n")
    (tmp_path / "boxes.py").write_text(
        HEAD
        + """
there = []
Verbs.list = lambda self: list(there)
Verbs.find = lambda self, pod: next((one for one in there if pod in (one.pod_id, one.token)), None)
Verbs.delete = lambda self, pod_id: there.clear()
def found(token): there.append(Pod(provider="boxes", pod_id="m1", token=token, run="r", address=""))
Verbs.test_found = staticmethod(found)
"""
    )
    words = ",".join(str(tmp_path / name) for name in ("awful.py", "broken.py", "gone.py", "boxes.py"))
    settings = settings_of(tmp_path, words)
    said: list[str] = []
    with Journal.open(settings.state_file) as journal:
        boxes = registry.provider(settings, "boxes")
        boxes.theirs.test_found(f"sw1-{journal.installation}-bbbbbbbbbbbbbbbb")
        journal_upkeep.reconcile_accounts(journal, settings, said.append)
        opened, problems = offers.accounts(settings)
    assert boxes.list() == []
    assert any("has the mark of this installation, but no row in the journal" in one for one in said)
    assert any("awful.py" in one and "SystemExit" in one for one in said)
    assert any("broken.py:1: not Python" in one for one in said) and any("gone.py: no such file" in one for one in said)
    assert [one.name for one in opened] == ["awful", "boxes"] and len(problems) == 2
