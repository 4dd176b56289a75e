"""Records of this installation: journals, files beside journals, pod folders and logs.

The records contain rented machines, places, prices and the keys of pods, and are never sent to a pod, regardless of
place and name. The paths come from the settings and from the journals in the user's configuration; the result names,
for a folder to send, the reason to keep a file here.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from infra import installation, journal_file
from infra.checkout import ROOT
from infra.settings import Settings

# Suffixes of files and folders beside a journal, by the base name they extend.
OF_NAME = ("", "-wal", "-shm", "-journal", ".lock", "-pace-", ".moving", ".coming", ".copy", ".moved-")
OF_STEM = (
    *(
        "-keys",
        "-hosts.json",
        "-owners.json",
        "-prices.json",
        "-ssh-config",
        "-rehearsal",
        "-timings",
        "-drills",
        "-notices",
    ),
    *("-supervisor.json", "-supervisor.log", "-control", "-packs"),
)
BEGINNINGS = ("-pace-", ".copy", ".moved-", "-ssh-config")  # suffixes of names that continue differently
BESIDE = ("known_hosts", "chat-history")
REHEARSAL = "SLIPWAY_REHEARSAL"


@dataclass(frozen=True)
class OwnRecords:
    """The records of this installation in a folder, as relative paths."""

    whole: frozenset[str]
    """Files and folders."""
    beginnings: tuple[str, ...] = ()
    """Prefixes of file paths."""

    def reason(self, path: str) -> str:
        """Return why a file may not be sent; "" for a file that is no record."""
        parts = path.split("/")
        is_ours = any("/".join(parts[:number]) in self.whole for number in range(1, len(parts) + 1))
        is_ours = is_ours or path.startswith(self.beginnings)
        return "a record of this installation: a journal, or a file beside the journal" if is_ours else ""


def in_folder(root: Path, environ: Mapping[str, str] = os.environ) -> OwnRecords:
    """Return the records in a folder. Raises UsageError for unreadable settings."""
    known = _known(tuple(sorted(environ.items())))
    real = root.resolve()
    whole, beginnings = set(), []
    for path, is_beginning in known:
        place = path.parent.resolve() / path.name
        if not place.is_relative_to(real) or place == real:
            continue
        inside = place.relative_to(real).as_posix()
        if is_beginning:
            beginnings.append(inside)
        else:
            whole.add(inside)
    return OwnRecords(frozenset(whole), tuple(beginnings))


@lru_cache(maxsize=4)
def _known(environ: tuple[tuple[str, str], ...]) -> tuple[tuple[Path, bool], ...]:
    """Return the paths of all records, each with a flag for a mere name prefix."""
    return tuple(dict.fromkeys(_records(dict(environ))))


def _records(environ: dict[str, str]) -> Iterator[tuple[Path, bool]]:
    worlds = [environ, {name: value for name, value in environ.items() if name != REHEARSAL}]
    journals = [journal_file.default_path(environ)]
    journals += [Path(one.journal) for one in installation.everyone(environ) if one.journal]
    for world in worlds[: 2 if REHEARSAL in environ else 1]:
        settings = Settings.load(ROOT, environ=world)
        journals.append(settings.state_file)
        yield from ((folder, False) for folder in (settings.pods, settings.homes, ROOT / "var" / "logs"))
        if settings.rehearsal:
            yield Path(settings.rehearsal), False
    for journal in dict.fromkeys(path.absolute() for path in journals):
        yield from ((journal.with_name(name), False) for name in BESIDE)
        for base, endings in ((journal.name, OF_NAME), (journal.stem, OF_STEM)):
            yield from ((journal.with_name(base + ending), ending in BEGINNINGS) for ending in endings)
