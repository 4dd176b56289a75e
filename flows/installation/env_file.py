"""Writer of the user's `.env` file: sets variables, and keeps all other bytes of the file.

`set_variables` writes the file atomically and readable only by the owner; `inv init` calls `set_variables`. Messages
never contain values.
"""

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

from infra.errors import UsageError
from store import local_files

NAME, DRAFT, LOCK = ".env", ".env.draft", "env.lock"
PLAIN = re.compile(r"[A-Za-z0-9_./:@%+=,~-]+")  # Characters without need for quotes.
BOM = "\ufeff"


def check(variable: str, value: str) -> None:
    """Raise UsageError for a value that `.env` cannot hold, or that cannot be a key or an address."""
    if not (value.isascii() and value.isprintable() and value.strip() == value):
        raise UsageError(
            f"{variable}: the value begins or ends with a space, or has a character that keys never have. Check that "
            "the whole key was copied"
        )
    if "${" in value:
        raise UsageError(
            f"{variable}: the value contains ${{, which .env reads as the start of a variable; export {variable} in "
            "the shell instead"
        )


def set_variables(root: Path, values: Mapping[str, str]) -> bool:
    """Set variables in the `.env` of the checkout `root`; return True if the contents changed.

    An existing file keeps order, comments and other variables; duplicate lines of a variable become one line. The new
    mode is 0600. Raises UsageError.
    """
    path = Path(os.path.realpath(root / NAME))  # May be a link to a file shared by several checkouts.
    folder = root / "var"
    try:
        folder.mkdir(exist_ok=True)
        with local_files.holding_lock(folder / LOCK):
            before = path.read_bytes() if path.exists() else b""
            after = with_variables(before.decode("utf-8"), values).encode()
            if after != before:
                local_files.write_whole(path, [after], mode=0o600, draft_name=DRAFT)
            elif path.exists() and path.stat().st_mode & 0o077:
                path.chmod(0o600)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}; nothing was written") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; nothing was written") from None
    return after != before


def with_variables(text: str, values: Mapping[str, str]) -> str:
    """Return the text of a `.env` file with these variables set. Raises UsageError."""
    from dotenv.parser import parse_stream

    from infra import dotenv_file

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
        if {one.name: one.value for one in dotenv_file.lines(text, {})}.get(
            variable
        ) != value:  # E.g. after an open quote.
            raise UsageError(
                f"{NAME}: the file would not return the new value of {variable}; correct the syntax of the file"
            )
    return text


def quoted(value: str) -> str:
    """Return a value in the syntax of `.env`."""
    if PLAIN.fullmatch(value):
        return value
    if not set(value) & {"'", "\\"}:
        return f"'{value}'"
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def _with_line(text: str, variable: str, line: str) -> str:
    """Return the text with a new line after the commented example of the variable as in .env.example, or at the end."""
    text += "" if text.endswith("\n") or not text else "\n"
    explained = list(re.finditer(rf"^#[ \t]*{re.escape(variable)}=.*\n", text, re.MULTILINE))
    at = explained[0].end() if explained else len(text)
    return text[:at] + line + text[at:]
