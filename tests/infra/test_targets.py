"""Machines named by a run, a set of pods, a service, a pool, or a prefix of names; the first match counts."""

import json
from types import SimpleNamespace

import pytest

from infra import targets
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.names import new_token

OWNERS = {
    "red-1": ("pod_set", "colours"), "red-2": ("pod_set", "colours"), "chat-a": ("service", "chat"),
    "chat-b": ("service", "chat"), "brave-otter-1": ("", ""), "lab-rat": ("", ""),
}  # fmt: skip


@pytest.fixture
def named(tmp_path):
    """Return a function from words to the names of the machines."""
    (tmp_path / "key").touch(mode=0o600)
    hosts = [{"ip": f"10.0.0.{number}", "identity_file": str(tmp_path / "key")} for number in (1, 2)]
    (tmp_path / "pools.yaml").write_text(json.dumps({"lab": {"user": "me", "hosts": hosts}}))
    settings = SimpleNamespace(pools=tmp_path / "pools.yaml", state_file=tmp_path / "journal.sqlite")
    with Journal.open(settings.state_file) as journal:
        for run, (kind, owner) in OWNERS.items():
            folder = str(tmp_path / run)
            journal.plan(
                token=new_token(journal.installation),
                run=run,
                vendor="local",
                owner_kind=kind,
                owner=owner,
                address=folder,
            )
        yield lambda *words, all=False: [one.name for one in targets.find(words, all, journal, settings)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["red-2", "brave-otter-1"], ["red-2", "brave-otter-1"]),
        (["colours"], ["red-1", "red-2"]),
        (["chat"], ["chat-a", "chat-b"]),
        (["lab"], ["lab/10.0.0.1", "lab/10.0.0.2"]),
        (["lab/10.0.0.2", "10.0.0.1"], ["lab/10.0.0.2", "lab/10.0.0.1"]),
        (["lab-", "br"], ["lab-rat", "brave-otter-1"]),
        (["colours", "red", "red-1", "chat"], ["red-1", "red-2", "chat-a", "chat-b"]),
    ],
)
def test_a_word_is_the_first_matching_kind_and_each_machine_appears_once(named, words, names):
    assert named(*words) == names


def test_the_inventory_is_not_read_for_words_of_pods(named, monkeypatch):
    monkeypatch.setattr(targets.inventory, "load", None)
    assert named("colours", "chat-a") == ["red-1", "red-2", "chat-a"] and named(all=True) == list(OWNERS)


def test_all_means_every_pod_and_an_unknown_word_is_refused_with_close_matches(named):
    assert named(all=True) == list(OWNERS)
    with pytest.raises(UsageError, match="'color' not found; available: colours"):
        named("color")
