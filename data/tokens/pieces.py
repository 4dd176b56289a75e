"""Decode ids that arrive one at a time. Standard library only."""

from collections.abc import Callable, Iterable, Iterator


def decode_stream(tokens: Iterable[int], decode: Callable[[list[int], bool], str]) -> Iterator[str]:
    """Yield text as soon as it is complete: ids that end inside a UTF-8 character wait for the next id.

    A character still incomplete at the end is dropped. decode: function of ids and a flag, True if the ids continue
    earlier ids.
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
