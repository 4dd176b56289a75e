"""Inspection of each file before an upload: its sha256, or the reason to keep the file here.

Refused are files named like secrets, with the content of secrets, with a key of this installation, and records of this
installation (journals, files beside journals, pod folders and logs), which are never sent, regardless of place and
name. A name alone never excludes source files and examples. The receiver compares the received content with the sha256,
so a change between inspection and upload is detected.
"""

import fnmatch
import functools
import hashlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra import installation, journal_file
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings
from infra.transport.scan.contents import ContentScanner, SearchedTexts, keys_of_installation, needles

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
PIECE_BYTES = 1 << 20
MOST_KNOWN = 200_000  # limit of cached inspections in this process
FRESH_NS = 1_000_000_000  # a file changed this recently may change again without a new time stamp
Stamp = tuple[str, int, int, int, int, SearchedTexts]
_known: dict[Stamp, tuple[str, str]] = {}
HARMLESS = (".env.example", "example.env", "*.example", "*.py", "*.pub")
ALWAYS = (
    ".env", ".env.*", "*.env", ".envrc", ".envrc.*",
    "*.pem", "*.ppk", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk",
    ".netrc", "_netrc", ".pgpass", "pgpass.conf", ".my.cnf", ".git-credentials", ".htpasswd", ".vault-token", ".s3cfg",
    ".boto", "credentials", "credentials.json", "credentials.toml", "credentials.y*ml",
    "application_default_credentials.json", "kubeconfig", "kubeconfig.y*ml", "*.kubeconfig",
    "secrets.y*ml", "secrets.json", "secrets.toml", ".*_history", "journal.sqlite*",
)  # fmt: skip
_ASSIGNED = rb"(?im)^\s*(?:export\s+|setx?\s+)?\w*(?:KEY|TOKEN|SECRET|PASSW)\w*\s*=\s*[\"']?[^\s$\"'(){}<]{8,}"
WITH = {  # file name: content that makes the file a secret
    ".npmrc": rb"(?m)^[^#;\n]*_(?:auth|authToken|password)\s*=\s*[^\s$]",
    ".yarnrc.yml": rb"(?m)^\s*npmAuth(?:Token|Ident)\s*:\s*[\"']?[^\s$\"']",
    ".pypirc": rb"(?m)^\s*password\s*[:=]\s*\S",
    "pip.conf": rb"://[^/\s:@]+:[^/\s@$]+@",
    ".dockercfg": rb"\"auth\"\s*:\s*\"[^\"]",
    "env.sh": _ASSIGNED,
    "*.env.sh": _ASSIGNED,
    "*-env.sh": _ASSIGNED,
    "*_env.sh": _ASSIGNED,
    "setenv*": _ASSIGNED,
}
EMPTY_SUBMODULE = "a submodule without files here; to send the files, run: git submodule update --init --recursive"
SUBMODULE_MODE = "160000"  # of a line of `git ls-files --stage`
BY_NAME = "the name says that the file holds secrets"


@dataclass(frozen=True)
class OwnRecords:
    """The records of this installation in a folder, as relative paths."""

    paths: frozenset[str]
    """Files and folders."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of file paths."""

    def reason(self, path: str) -> str:
        """Return why a file may not be sent; "" for a file that is no record."""
        parts = path.split("/")
        is_ours = any("/".join(parts[:number]) in self.paths for number in range(1, len(parts) + 1))
        is_ours = is_ours or path.startswith(self.prefixes)
        return "a record of this installation: a journal, or a file beside the journal" if is_ours else ""


def records_in(root: Path, environ: Mapping[str, str] = os.environ) -> OwnRecords:
    """Return the records in a folder. Raises UsageError for unreadable settings."""
    known = _known_records(tuple(sorted(environ.items())))
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


@functools.lru_cache(maxsize=4)
def _known_records(environ: tuple[tuple[str, str], ...]) -> tuple[tuple[Path, bool], ...]:
    """Return the paths of all records, each with a flag for a mere name prefix."""
    return tuple(dict.fromkeys(_records(dict(environ))))


def _records(environ: dict[str, str]) -> Iterator[tuple[Path, bool]]:
    worlds = [environ, {name: value for name, value in environ.items() if name != REHEARSAL}]
    journals = [journal_file.default_path(environ)]
    journals += [Path(one.journal) for one in installation.all_claims(environ) if one.journal]
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


@dataclass(frozen=True)
class FileInspector:
    """The inspection of the files of a folder.

    `anyway`: apparent secrets to send on the user's request, relative to the folder.
    """

    root: Path
    own: SearchedTexts
    records: OwnRecords
    allowed_paths: tuple[str, ...] = ()

    @staticmethod
    def for_folder(root: Path, anyway: Sequence[str] = ()) -> "FileInspector":
        """Return the inspector of a folder, with the keys and records of this installation.

        Raises UsageError for an invalid `.env`.
        """
        own = needles(keys_of_installation())
        return FileInspector(root, own, records_in(root), named(root, anyway))

    def inspect(self, path: str, seen: os.stat_result) -> tuple[str, str]:
        """Return (sha256 of the content to send, reason not to send the file); exactly one of them is "".

        Results for unchanged files are cached in this process.
        """
        if reason := self.records.reason(path) or why_unfit(self.root, path, seen):
            return "", reason
        sha, reason = self._scan_cached(path, seen)
        if reason and path in self.allowed_paths:
            if is_checkout(self.root) and not git_tracks(self.root, path):
                return "", f"{reason}; --send-anyway is for files that git tracks, and git does not track this file"
            return _sha256(self.root, path), ""
        return sha, reason

    def _scan_cached(self, path: str, seen: os.stat_result) -> tuple[str, str]:
        key = (f"{self.root}/{path}", seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, self.own)
        is_settled = time.time_ns() - max(seen.st_mtime_ns, seen.st_ctime_ns) > FRESH_NS
        if is_settled and key in _known:
            return _known[key]
        found = self._scan(path)
        if is_settled:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            _known[key] = found
        return found

    def _scan(self, path: str) -> tuple[str, str]:
        name = os.path.basename(path)
        if reason := secret_name(name):
            return "", reason
        digest, scanner = hashlib.sha256(), ContentScanner(self.own, secret_lines(name))
        for piece in pieces(self.root, path):
            digest.update(piece)
            scanner.feed(piece)
            if scanner.reason:
                return "", scanner.reason
        scanner.feed(b"", is_last=True)
        return ("", scanner.reason) if scanner.reason else (digest.hexdigest(), "")


def named(root: Path, typed: Sequence[str]) -> tuple[str, ...]:
    """Return the user's named files relative to `root`; accepts `~` and absolute paths within `root`."""
    found = []
    for name in typed:
        path = Path(os.path.expanduser(name))
        if not path.is_absolute():
            found.append(os.path.normpath(name))
        elif path.is_relative_to(root):
            found.append(str(path.relative_to(root)))
    return tuple(found)


def pieces(root: Path, path: str) -> Iterator[bytes]:
    """Yield the content of a file, or the target of a link.

    Raises UsageError for an unreadable file.
    """
    full = f"{root}/{path}"
    try:
        if os.path.islink(full):
            yield os.fsencode(os.readlink(full))
            return
        with open(full, "rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise UsageError(f"{full} cannot be read for sending: {error.strerror}") from None


def why_unfit(root: Path, path: str, seen: os.stat_result) -> str:
    """Return why `path` cannot be sent; "" for a regular file, or for a link to a target within the folder."""
    if stat.S_ISLNK(seen.st_mode):
        target = os.readlink(root / path)
        is_inside = Path(os.path.realpath(root / path)).is_relative_to(root) and not os.path.isabs(target)
        return "" if is_inside else f"a link out of the folder, to {target}"
    if stat.S_ISDIR(seen.st_mode):
        is_repository = (root / path / ".git").exists()
        return "a separate git repository" if is_repository else EMPTY_SUBMODULE
    if not stat.S_ISREG(seen.st_mode):
        return "not a regular file"
    return ""


def _sha256(root: Path, path: str) -> str:
    digest = hashlib.sha256()
    for piece in pieces(root, path):
        digest.update(piece)
    return digest.hexdigest()


def secret_name(name: str) -> str:
    """Return why a file with this name stays here regardless of content; "" = may be sent."""
    return BY_NAME if _is_named(name, ALWAYS) and not _is_named(name, HARMLESS) else ""


def secret_lines(name: str) -> re.Pattern[bytes] | None:
    """Return the pattern of secret content for files with this name; None for an ordinary name."""
    return next((re.compile(lines) for one, lines in WITH.items() if fnmatch.fnmatchcase(name, one)), None)


def _is_named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def is_checkout(root: Path) -> bool:
    """Return whether a folder is a git checkout or lies in a git checkout."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def listed_by_git(root: Path, *which: str) -> list[str]:
    """Return git's list of files under `root`, sorted: by default all tracked and untracked files except ignored ones.

    Raises UsageError without git or for a failure of git.
    """
    words = ["git", "-C", str(root), "ls-files", *(which or ("--cached", "--others")), "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise UsageError(f"{root} is a git checkout, but git is not installed; install git") from None
    if done.returncode != 0:
        raise UsageError(f"{root}: git cannot list the files: {done.stderr.decode(errors='replace').strip()}")
    return sorted({os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path})


def listed_with_submodules(root: Path) -> list[str]:
    """Return git's list of files as `listed_by_git`, with the files of submodules in place of their folders.

    A repository inside `root` that is no submodule, such as a clone of a library, stays a folder of the list, and a
    link stays a link. Files of git's index below a link are left out: git calls the files deleted, and the files in
    their place may lie outside of `root`.
    """

    @functools.cache
    def is_linked(folder: str) -> bool:
        return folder != "" and (os.path.islink(root / folder) or is_linked(os.path.dirname(folder)))

    found = [path for path in listed_by_git(root) if not is_linked(os.path.dirname(path))]
    inner = [path for path in found if (root / path / ".git").exists() and not os.path.islink(root / path)]
    if not inner:
        return found
    index = (line.partition("\t") for line in listed_by_git(root, "--stage"))
    submodules = {path for about, _, path in index if about.startswith(SUBMODULE_MODE)}.intersection(inner)
    files = [path for path in found if path not in submodules]
    for path in submodules:
        files += [f"{path}/{one}" for one in listed_with_submodules(root / path)]
    return sorted(files)


def git_tracks(root: Path, path: str) -> bool:
    """Return whether git tracks a file of `root`, or of a submodule in `root`."""
    file = root / path
    return bool(listed_by_git(file.parent, "--cached", "--", f":(literal){file.name}"))
