r"""Reader of `.env` files: the syntax of dotenv, with the quotes and escapes of a shell.

Single quotes protect everything; only `\'` stands for a quote. Outside of single quotes, `\$` is a dollar, `${NAME}` is
a variable, and `$NAME` is a variable in `export` lines, and the previous value in the line of the same name. All
other forms of a shell stay text.
"""

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dotenv.parser import Binding, parse_stream
from dotenv.variables import Variable, parse_variables

from infra.errors import UsageError

DOLLAR = "\ufdd0"  # stands for `\$` while dotenv reads the text; no character of Unicode
_ESCAPED = re.compile(r"(?<!\\)((?:\\\\)*)\\\$")
_SINGLE = re.compile(r"'((?:\\.|[^'\\])*)'", re.DOTALL)
_UNREAD = re.compile(r"\$[({]")  # of a shell, but not of dotenv files
_NAME = r"[A-Za-z_]\w*"


@dataclass(frozen=True)
class DotenvLine:
    """A line, or several lines with a single value. `name`: "" for an invalid line, which has a note."""

    number: int
    name: str = ""
    value: str = ""
    notes: tuple[str, ...] = ()


def read(path: Path) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a file, and notes about odd lines, without values. Raises UsageError.

    The last line of a variable counts; an empty last line leaves the variable out.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f".env: {error}") from error
    found = list(lines(text, os.environ))
    notes = [f"line {one.number}{note}" for one in found for note in one.notes]
    values = {one.name: one.value for one in found if one.name}
    return {name: value for name, value in values.items() if value}, notes


def lines(text: str, environ: Mapping[str, str]) -> Iterator[DotenvLine]:
    """Yield the lines with a variable, and the invalid lines."""
    known = dict(environ)
    for one in parse_stream(io.StringIO(_ESCAPED.sub(rf"\1{DOLLAR}", text))):
        number = one.original.line + len(one.original.string) - len(one.original.string.lstrip("\r\n"))
        if one.error or one.key and (one.value is None or "\0" in one.value or not one.key.isidentifier()):
            yield DotenvLine(number, notes=(" is left out: expected NAME=value",))
        elif one.key and one.value is not None:
            value, notes = _value(one, known)
            known[one.key] = value
            yield DotenvLine(number, one.key, value, notes)


def _value(one: Binding, known: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the value of a line, and notes."""
    literal = _SINGLE.match(one.original.string.partition("=")[2].lstrip())
    if literal:
        raw = re.sub(r"\\(.)", lambda pair: "'" if pair[1] == "'" else pair[0], literal[1], flags=re.DOTALL)
        return raw.replace(DOLLAR, r"\$"), ()
    # Outside of `export NAME=`, `$` may belong to a password.
    own = _NAME if one.original.string.lstrip().startswith("export ") else re.escape(one.key or "")
    parts = list(parse_variables(re.sub(rf"\$({own})\b", r"${\1}", one.value or "")))
    absent = [part for part in parts if isinstance(part, Variable) and part.default is None and part.name not in known]
    left = [part.default if isinstance(part, Variable) else getattr(part, "value", "") for part in parts]
    notes = []
    if absent:
        names = ", ".join(f"${{{part.name}}}" for part in absent)
        notes.append(f": {names} is not set, and counts as empty. To keep the text, put the value into single quotes")
    if any(_UNREAD.search(text or "") for text in left):
        notes.append(": $(...), and ${...} other than ${NAME} and ${NAME:-text}, stay text")
    if any(name in known for text in left for name in re.findall(rf"\$({_NAME})", text or "")):
        notes.append(
            ": $NAME stays text in a line without `export`. For the value of the variable, write ${NAME}; to keep the "
            "text, put the value into single quotes"
        )
    return "".join(part.resolve(known) for part in parts).replace(DOLLAR, "$"), tuple(notes)
