"""Refusals of the file of a service, named all at once. Each text begins with the place: `resources.memory: ...`."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra import strict_yaml
from infra.errors import UsageError
from infra.strict_yaml import YamlDocument


@contextlib.contextmanager
def collecting(found: list[str]) -> Iterator[None]:
    """Collect the UsageError of the body."""
    try:
        yield
    except UsageError as error:
        found.append(str(error))


def raise_all(where: str, found: Sequence[str], path: Path | None = None) -> None:
    """Raise UsageError with all refusals, if any. path: the file, for the line of each refusal."""
    texts = list(dict.fromkeys(found))
    if texts and path is not None:
        (document, *_) = [*strict_yaml.documents(path), YamlDocument({})]
        lines = sorted((line_of(document, one), number) for number, one in enumerate(texts))
        texts = [f"line {line}: {texts[number]}" for line, number in lines]
    if len(texts) > 1:
        raise UsageError(f"{where}: {len(texts)} lines to correct\n  " + "\n  ".join(texts))
    if texts:
        raise UsageError(f"{where}: {texts[0]}")


def line_of(document: YamlDocument, text: str) -> int:
    """Return the line of the keys at the beginning of a refusal."""
    place: strict_yaml.Place = ()
    while True:
        number = re.match(r"([0-9]+)[.:\s]\s*", text)
        if number and (*place, int(number[1]) - 1) in document.lines:
            place, text = (*place, int(number[1]) - 1), text[number.end() :]
            continue
        keys = [one[-1] for one in document.lines if one and one[:-1] == place]
        words = [re.match(rf"'?({re.escape(one)})'?[.:,\s]\s*", text) for one in keys if isinstance(one, str)]
        if not (known := [one for one in words if one]):
            break
        word = max(known, key=lambda one: len(one[1]))
        place, text = (*place, word[1]), text[word.end() :]
    if unknown := re.match("unknown key '([^']*)'", text):
        return document.line(*place, unknown[1])
    if variable := re.match(r"\$(\w+) ", text):
        named = re.compile(rf"\$\{{?{variable[1]}\b")
        inside = (one for one, said in document.texts.items() if one[: len(place)] == place and named.search(said))
        place = next(inside, place)
    return document.line(*place)
