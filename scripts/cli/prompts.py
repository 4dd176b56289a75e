"""Questions at the terminal. Without a terminal, the error names the flag with the answer."""

import sys
from collections.abc import Mapping, Sequence

from infra.errors import UsageError
from infra.records import Offer, Plan, PlannedMount
from infra.units import count, size

SHOWN = 9  # numbered offers that the user can pick


def pick(offers: list[Offer], is_named: bool, yes: bool) -> list[Offer]:
    """Return the offers in rental order, the user's pick first; [] if the user quits.

    Raises UsageError when stdin is not a terminal.
    """
    found = pick_or(offers, is_named, yes, {})
    assert not isinstance(found, str), "no alternative answers were given"
    return found


def pick_or(offers: list[Offer], is_named: bool, yes: bool, others: Mapping[str, str]) -> list[Offer] | str:
    """Return the offers in rental order, or the letter of an alternative answer.

    others: the text of each alternative by letter. Raises UsageError when stdin is not a terminal.
    """
    if yes or is_named:
        return offers
    if not sys.stdin.isatty():
        raise UsageError(
            "stdin is not a terminal, so inv cannot ask which instance to rent; nothing was rented. Pass "
            "--yes, or --cloud, --region and --instance-type"
        )
    shown = offers[:SHOWN]
    for letter, words in others.items():
        print(f"{letter!r}: {words}", file=sys.stderr)
    while True:
        print(f"Select instance [1-{len(shown)}] or 'q' to quit: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        said = line.strip().lower()
        if said == "q" or not line:
            return []
        if said in others:
            return said
        if said.isdecimal() and 1 <= int(said) <= len(shown):
            chosen = shown[int(said) - 1]
            return [chosen, *(one for one in offers if one is not chosen)]


def confirm(yes: bool) -> None:
    """Raise UsageError unless `yes` is set or the user confirms."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal, so inv cannot ask for confirmation; nothing was changed. Pass --yes")
    print("Do this? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")


def ask_to_send(mounts: Sequence[PlannedMount], refusal: str, yes: bool) -> None:
    """Ask about each mount from a hidden folder of the user's home.

    Raises UsageError with `refusal` if stdin is not a terminal or `--yes` is given, because `--yes` does not cover this
    question.
    """
    if yes or not sys.stdin.isatty():
        raise UsageError(refusal)
    for one in mounts:
        what = f"{one.source} is in a hidden folder of your home; such folders often hold keys"
        print(
            f"{what}. Send {count(one.files, 'file')}, {size(one.bytes)}? [y/N] ", end="", file=sys.stderr, flush=True
        )
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError(f"{one.source} was not sent and the job was not started; nothing was rented")


def ask_about_made(plan: Plan, yes: bool) -> str:
    """Return "keep" or "remake" for phases made by different code, or "" without such phases.

    Raises UsageError when stdin is not a terminal, `yes` is set or the answer is invalid.
    """
    if not plan.doubtful:
        return ""
    named = "; ".join(f"{one.name} was made by different code: {', '.join(one.differs)}" for one in plan.doubtful)
    if yes or not sys.stdin.isatty():
        raise UsageError(
            f"{named}; nothing was changed. Keep the artifact (the version says that the result is the "
            "same): --keep-made. Make the artifact again: --remake"
        )
    print(f"{named}.\nKeep the artifact, or make the artifact again? [K/r] ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    said = line.strip().lower()
    if not line or said not in ("", "k", "keep", "r", "remake"):
        raise UsageError("nothing was changed; answer k or r, or pass --keep-made or --remake")
    return "remake" if said in ("r", "remake") else "keep"
