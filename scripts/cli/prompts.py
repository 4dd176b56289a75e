"""Questions at the terminal. Without a terminal, the error names the flag with the answer."""

import sys
from collections.abc import Callable, Mapping, Sequence

from infra.errors import UsageError
from infra.records import Offer, Plan, PlannedMount
from infra.units import count, size

NAMING = "--cloud, --region and --instance-type"
SHOWN = 9  # offers in the table of a plan
Show = Callable[[Sequence[Offer]], None]  # prints a numbered table of offers


def pick(offers: list[Offer], is_named: bool, yes: bool, show: Show, flags: str = NAMING) -> list[Offer]:
    """Return the offers in rental order, the user's pick first; [] if the user quits.

    flags: flags of the command that name a machine in place of --yes; "" for none. Raises UsageError when stdin is not
    a terminal.
    """
    found = pick_or(offers, is_named, yes, show, {}, flags)
    assert not isinstance(found, str), "no alternative answers were given"
    return found


def pick_or(
    offers: list[Offer],
    is_named: bool,
    yes: bool,
    show: Show,
    others: Mapping[str, str],
    flags: str = NAMING,
) -> list[Offer] | str:
    """Return the offers in rental order, or the letter of an alternative answer.

    others: the text of each alternative by letter. flags: see `pick`. Raises UsageError when stdin is not a terminal.
    """
    if yes or is_named:
        return offers
    if not sys.stdin.isatty():
        raise UsageError(
            "stdin is not a terminal, so inv cannot ask which instance to rent; nothing was rented. Pass --yes"
            + (f", or {flags}" if flags else "")
        )
    letters = {"a": f"show all {len(offers)} offers", **others} if len(offers) > SHOWN else others
    for letter, words in letters.items():
        print(f"{letter!r}: {words}", file=sys.stderr)
    while True:
        line = ask(f"Select instance [1-{len(offers)}] or 'q' to quit: ", "nothing was rented")
        said = line.strip().lower()
        if said == "q" or not line:
            return []
        if said in others:
            return said
        if said.isascii() and said.isdecimal() and 1 <= int(said) <= len(offers):
            chosen = offers[int(said) - 1]
            return [chosen, *(one for one in offers if one is not chosen)]
        if said in letters:
            show(offers)
            continue
        answers = ", ".join([f"a number from 1 to {len(offers)}", *map(repr, letters)])
        print(f"{f'{said[:40]!r} is no answer' if said else 'no answer'}; type {answers} or 'q'", file=sys.stderr)


def ask(question: str, otherwise: str) -> str:
    """Return the line typed as an answer, "" at the end of the input; on Ctrl-C print `otherwise` and leave."""
    print(question, end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline()
    except KeyboardInterrupt:
        print(f"\n{otherwise}", file=sys.stderr)
        raise


def confirm(yes: bool) -> None:
    """Raise UsageError unless `yes` is set or the user confirms."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal, so inv cannot ask for confirmation; nothing was changed. Pass --yes")
    if ask("Do this? [y/N] ", "nothing was changed").strip().lower() not in ("y", "yes"):
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
        refused = f"{one.source} was not sent and the job was not started; nothing was rented"
        question = f"{what}. Send {count(one.files, 'file')}, {size(one.bytes)}? [y/N] "
        if ask(question, refused).strip().lower() not in ("y", "yes"):
            raise UsageError(refused)


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
    line = ask(f"{named}.\nKeep the artifact, or make the artifact again? [K/r] ", "nothing was changed")
    said = line.strip().lower()
    if not line or said not in ("", "k", "keep", "r", "remake"):
        raise UsageError("nothing was changed; answer k or r, or pass --keep-made or --remake")
    return "remake" if said in ("r", "remake") else "keep"
