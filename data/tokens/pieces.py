"""Ids that come one by one, as text. Standard library only."""

from collections.abc import Callable, Iterable, Iterator


def as_text(tokens: Iterable[int], decode: Callable[[list[int]], str]) -> Iterator[str]:
    """Text as it becomes whole: ids whose bytes end inside a character wait for the next ones.

    A character that never becomes whole is left out at the end.
    """
    waiting: list[int] = []
    for token in tokens:
        waiting.append(token)
        text = decode(waiting)
        if text and not text.endswith("\ufffd"):
            yield text
            waiting = []
    if waiting:
        yield decode(waiting).rstrip("\ufffd")
