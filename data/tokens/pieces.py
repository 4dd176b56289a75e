"""Ids that come one by one, as text. Standard library only."""

from collections.abc import Callable, Iterable, Iterator


def as_text(tokens: Iterable[int], decode: Callable[[list[int], bool], str]) -> Iterator[str]:
    """Text as it becomes whole: ids whose bytes end inside a character wait for the next ones.

    A character that never becomes whole is left out at the end. decode: ids, and whether they go on behind others.
    """
    waiting: list[int] = []
    goes_on = False
    for token in tokens:
        waiting.append(token)
        text = decode(waiting, goes_on)
        if text and not text.endswith("\ufffd"):
            yield text
            waiting, goes_on = [], True
    if waiting:
        yield decode(waiting, goes_on).rstrip("\ufffd")
