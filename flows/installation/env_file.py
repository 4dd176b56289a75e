"""The user's `.env`: variables are set in it, and all else in it stays as it is, to the byte.

In: the folder of the checkout, and variables with their values. Out: the file, for its owner only and whole at any
moment. `inv init` calls it. No value is ever part of a message.
"""

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from infra.errors import UsageError
from store import local_files

NAME, DRAFT, LOCK = ".env", ".env.draft", "env.lock"
PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,~-]+")  # characters that need no quotes
BOM = "\ufeff"


def check(variable: str, value: str) -> None:
    """Raise UsageError for a value that `.env` cannot hold, or that is none of a key or an address."""
    if not (value.isascii() and value.isprintable() and value.strip() == value):
        raise UsageError(f"{variable}: it begins or ends with a space, or has a character that no key has; was all "
                         "of it copied?")  # fmt: skip
    if "${" in value:
        raise UsageError(f"{variable}: it holds ${{, which .env takes for the name of a variable; export it instead")


def put(root: Path, values: Mapping[str, str]) -> bool:
    """Set variables in the `.env` of the checkout `root`; return whether that has changed it.

    A file that is there keeps its order, its comments and what else it says; of a variable that stands in it several
    times one line is left. Others cannot read it from then on. Raises UsageError.
    """
    path = Path(os.path.realpath(root / NAME))  # it may be a link to a file that several checkouts share
    folder = root / "var"
    try:
        folder.mkdir(exist_ok=True)
        with local_files.held(folder / LOCK):
            before = path.read_bytes() if path.exists() else b""
            after = amended(before.decode("utf-8"), values).encode()
            if after != before:
                local_files.write_whole(path, [after], mode=0o600, draft_name=DRAFT)
            elif path.exists() and path.stat().st_mode & 0o077:
                path.chmod(0o600)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}; nothing was written") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; nothing was written") from None
    return after != before


def amended(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a `.env` in which these variables have these values. Raises UsageError."""
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    for variable, value in values.items():
        check(variable, value)
        parts = [(one.key, one.original.string) for one in parse_stream(io.StringIO(text))]
        places = [at for at, (key, _) in enumerate(parts) if key == variable]
        line = f"{variable}={quoted(value)}\n"
        if places:
            *shadowed, last = places
            lead = re.match(r"\s*(export\s+)?", parts[last][1])
            parts[last] = (variable, (lead[0] if lead else "") + line)
            body = "".join(said for at, (_, said) in enumerate(parts) if at not in shadowed)
        else:
            body = _with_line("".join(said for _, said in parts), variable, line)
        text = (BOM if text.startswith(BOM) else "") + body
        if dotenv_values(stream=io.StringIO(text)).get(variable) != value:  # an open quote before it, for one
            raise UsageError(f"{NAME}: {variable} cannot be written so that it can be read back; correct the file")
    return text


def quoted(value: str) -> str:
    """Return a value as `.env` spells it."""
    if PLAIN.fullmatch(value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _with_line(text: str, variable: str, line: str) -> str:
    """Return the text with a new line: behind the one that explains the variable, as in .env.example, or at the end."""
    text += "" if text.endswith("\n") or not text else "\n"
    explained = list(re.finditer(rf"^#[ \t]*{re.escape(variable)}=.*\n", text, re.MULTILINE))
    at = explained[0].end() if explained else len(text)
    return text[:at] + line + text[at:]
