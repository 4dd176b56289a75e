"""Questions of a command, and cases without a question."""

import io

import pytest

from infra.errors import UsageError
from infra.records import Offer
from scripts.cli import prompts
from scripts.market import offers_table

OFFERS = [Offer(provider="shadeform", offer_id=f"o{number}", gpu="B200", num_gpus=8) for number in (1, 2)]


def test_fully_named_machine_is_taken_without_a_question(monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    assert prompts.pick_or(OFFERS, True, False, print, {}) == OFFERS
    assert prompts.pick_or(OFFERS, False, True, print, {}) == OFFERS
    with pytest.raises(UsageError, match="Pass --yes, or --cloud, --region and --instance-type"):
        prompts.pick_or(OFFERS, False, False, print, {})
    with pytest.raises(UsageError, match="nothing was rented. Pass --yes$"):
        prompts.pick(OFFERS, False, False, print, flags="")


@pytest.mark.parametrize(
    ("typed", "picked", "asked"),
    [("2\n", ["o2", "o1"], 1), ("1\n", ["o1", "o2"], 1), ("9\nx\n\n2\n", ["o2", "o1"], 4), ("q\n", [], 1), ("", [], 1)],
)
def test_offer_is_picked_by_its_number_and_other_input_is_asked_again(monkeypatch, capsys, typed, picked, asked):
    terminal = io.StringIO(typed)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    assert [one.offer_id for one in prompts.pick(OFFERS, False, False, print)] == picked
    assert capsys.readouterr().err.count("Select instance [1-2] or 'q' to quit:") == asked


def test_a_refused_answer_is_explained_and_every_offer_can_be_shown_and_picked(monkeypatch, capsys):
    offers = [Offer(provider="lium", offer_id=f"o{number}", region=f"place-{number}") for number in range(1, 13)]
    terminal = io.StringIO("13\nabc\n\na\n12\n")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    picked = prompts.pick_or(offers, False, False, offers_table.show_table, {"s": "end itself"})
    assert [one.offer_id for one in picked[:2]] == ["o12", "o1"] and len(picked) == 12
    said = capsys.readouterr().err
    assert "'a': show all 12 offers" in said and "place-12" in said
    answers = "type a number from 1 to 12, 'a', 's' or 'q'"
    for refusal in ("'13' is no answer", "'abc' is no answer", "no answer"):
        assert f"{refusal}; {answers}" in said


def test_an_interrupted_question_says_that_nothing_was_rented(monkeypatch, capsys):
    def interrupted() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.readline", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prompts.pick(OFFERS, False, False, print)
    assert capsys.readouterr().err.endswith("\nnothing was rented\n")
