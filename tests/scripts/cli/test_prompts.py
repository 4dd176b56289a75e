"""Questions of a command, and cases without a question."""

import io

import pytest

from infra.errors import UsageError
from infra.records import Offer
from scripts.cli import prompts

OFFERS = [Offer(provider="shadeform", offer_id=f"o{number}", gpu="B200", num_gpus=8) for number in (1, 2)]


def test_fully_named_machine_is_taken_without_a_question(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert prompts.pick_or(OFFERS, True, False, {}) == OFFERS
    assert prompts.pick_or(OFFERS, False, True, {}) == OFFERS
    with pytest.raises(UsageError, match="Pass --yes, or --cloud, --region and --instance-type"):
        prompts.pick_or(OFFERS, False, False, {})


@pytest.mark.parametrize(
    ("typed", "picked", "asked"),
    [("2\n", ["o2", "o1"], 1), ("1\n", ["o1", "o2"], 1), ("9\nx\n\n2\n", ["o2", "o1"], 4), ("q\n", [], 1), ("", [], 1)],
)
def test_offer_is_picked_by_its_number_and_other_input_is_asked_again(monkeypatch, capsys, typed, picked, asked):
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert [one.offer_id for one in prompts.pick(OFFERS, False, False)] == picked
    assert capsys.readouterr().err.count("Select instance [1-2] or 'q' to quit:") == asked
