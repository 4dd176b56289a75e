"""Files of allowances beside the journal: a record each, and a receipt each, in which every call is a line.

<journal>-allowances/<name>.json          the allowance, with a hash of the token
<journal>-allowances/<name>.receipt       a line per call; each line holds the digest of the line before
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.settings import Settings
from packs.agents.control.place import folder
from packs.agents.records.allowance import NAME, Allowance, digest, from_json
from store import local_files, untrusted_input

FIRST = "0" * 64  # digest before the first line of a receipt


def save(one: Allowance, settings: Settings) -> None:
    """Write an allowance, readable by the owner only."""
    folder(settings).mkdir(parents=True, exist_ok=True, mode=0o711)
    local_files.replace(folder(settings) / f"{one.name}.json", json.dumps(asdict(one), indent=1).encode(), 0o600)


def load(name: str, settings: Settings) -> Allowance:
    """Return an allowance by name. Raises UsageError for an unknown name or a damaged file."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of an allowance: use small letters, digits and dashes, 32 at most")
    path = folder(settings) / f"{name}.json"
    try:
        return from_json(untrusted_input.load(path))
    except FileNotFoundError:
        known = ", ".join(one.name for one in every(settings)) or "none"
        raise UsageError(f"no allowance is called {name}; known: {known}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: {error}; to end all runs of the allowance: inv down {name}") from None


def every(settings: Settings) -> list[Allowance]:
    """Return all readable allowances, by name."""
    found = []
    for path in sorted(folder(settings).glob("*.json")):
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
            found.append(from_json(untrusted_input.load(path)))
    return found


def of_token(token: str, settings: Settings) -> Allowance | None:
    """Return the allowance of a token, or None."""
    said = digest(token)
    return next((one for one in every(settings) if one.token_sha256 == said), None)


@dataclass
class DeskRecord:
    """State of a desk that outlives the process."""

    number: int = 0
    """Number of the last run or service."""
    runs: list[str] = field(default_factory=list)
    services: dict[str, int] = field(default_factory=dict)
    """Limit of each service, in micro-USD."""


def desk_record(name: str, settings: Settings) -> DeskRecord:
    """Return the state of the desk of an allowance."""
    try:
        said = untrusted_input.load(folder(settings) / f"{name}.desk")
        return DeskRecord(int(said["number"]), [*map(str, said["runs"])], dict(said["services"]))
    except FileNotFoundError:
        return DeskRecord()


def save_desk(name: str, record: DeskRecord, settings: Settings) -> None:
    local_files.replace(folder(settings) / f"{name}.desk", json.dumps(asdict(record)).encode(), 0o600)


class Receipt:
    """The calls of an allowance, in order. A line that is lost or changed breaks the chain, except the last line."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.path = folder(settings) / f"{name}.receipt"

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append a call, durably."""
        with self._locked() as file:
            lines = file.read().splitlines()
            before = hashlib.sha256(lines[-1]).hexdigest() if lines else FIRST
            said = {"number": len(lines) + 1, **entry, "before": before}
            file.write(json.dumps(said, sort_keys=True).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def entries(self) -> list[dict[str, Any]]:
        """Return all calls. Raises SlipwayError if a line was lost or changed."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        before, found = FIRST, []
        for number, line in enumerate(lines, 1):
            said = json.loads(line)
            if said.get("before") != before or said.get("number") != number:
                raise SlipwayError(f"{self.path}: line {number} does not follow the line before; the file was changed")
            found.append(said)
            before = hashlib.sha256(line).hexdigest()
        return found

    @contextlib.contextmanager
    def _locked(self) -> Iterator[Any]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
