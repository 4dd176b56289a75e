"""A control host, as a laptop sees it: how it is reached, what is sent before a command, and what is kept of it here.

In: its name, as it is typed. Out: commands that run there over one connection. Beside this machine's journal lies a
folder for it: the host key that was pinned, the last copy of its journal, and when it was last seen alive.
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from infra.agent.job import PodFolder, write_durably
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.machines import inventory
from infra.settings import Settings, is_secret, table, variables
from infra.transport import bootstrap
from infra.transport.protocol import Lost, Unreachable
from infra.transport.push import Pushed, push
from infra.transport.ssh import Ssh
from packs.control_host.control import archive, terminal
from packs.control_host.control.places import HostPlaces, checkout_id
from packs.control_host.control.settings import HERE
from store import local_files, outside

T = TypeVar("T")

ASK_S = 30.0
MOST_ANSWER = archive.MOST_TEXT + (1 << 20)  # bytes: an answer may hold an archive
MAKE_S = 900.0  # the environment of the commands, where packages come over a slow line
# Ask for the folder of our files, whether it has this checkout already, and whose control host it is.
ASK = """
umask 077
root="$HOME/.slipway/control"; here="$root/checkouts/$1"
printf '%s\\n' "$root"
if [ -e "$here/POD.json" ]; then echo known; else
    mkdir -p "$here/state" && printf '{"token": "%s"}\\n' "$1" > "$here/POD.json.draft" || exit 1
    mv -f "$here/POD.json.draft" "$here/POD.json" || exit 1
    echo new
fi
cat "$root/about.json" 2>/dev/null
exit 0
"""
NOT_BEGUN = 3
# Print how a command ended; where that is not noted, remove its record, which a session that begins takes away itself.
FETCH = f'cat "$1" 2>/dev/null && exec rm -f "$1"; rm "$2" 2>/dev/null && exit {NOT_BEGUN}; exit 1'
# Variables about this machine, which mean nothing on the control host.
OF_THIS_MACHINE = ("SLIPWAY_STATE_FILE", "SLIPWAY_PODS", "SLIPWAY_POOLS", "SLIPWAY_ENVIRONMENTS", "SLIPWAY_INSTALLER",
                   "SLIPWAY_WORKSPACE", "SLIPWAY_REHEARSAL", "SLIPWAY_CONTROL", "SLIPWAY_RAY_PYTHON")  # fmt: skip
OF_THE_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
GIVING = ("-e", "--env", "--secret")  # flags whose bare name takes the shell's value


@dataclass(frozen=True)
class There:
    """A control host as it describes itself."""

    places: HostPlaces
    about: dict[str, Any]  # {} = it is none (any more)
    is_new: bool  # to this checkout


@dataclass(frozen=True)
class ControlHost:
    """The control host `name`; `folder` holds what is kept of it here."""

    name: str
    machine: Ssh
    folder: Path

    @staticmethod
    def of(name: str, settings: Settings) -> "ControlHost":
        """Return the machine of that name; nothing is asked yet. Raises UsageError."""
        found = inventory.reach(name, settings.pools)
        folder = folder_of(name, settings.state_file)
        machine = Ssh(found.address, folder / "known_hosts")
        machine.python = found.python
        return ControlHost(name, machine, folder)

    @property
    def copy(self) -> "JournalCopy":
        return JournalCopy(self.folder)

    def ask(self) -> There:
        """Return the host's description of itself, and make a place for this checkout's code. Raises SlipwayError."""
        done = self.machine.run(["sh", "-c", ASK, "sh", checkout_id(ROOT)], timeout_s=ASK_S)
        root, known, *about = [*(done.stdout.splitlines() if done.exited == 0 else []), "", ""]
        if not root.startswith("/"):
            raise SlipwayError(f"{self.name}: its folder cannot be made: {done.stderr.strip()}")
        self.copy.note_seen()
        return There(HostPlaces(Path(root)), self._about(about[0]) if about and about[0] else {}, known == "new")

    def _about(self, line: str) -> dict[str, Any]:
        """Return the control host's own record. Raises SlipwayError."""
        try:
            said = outside.mapping(line)
            return {**said, "installation": outside.typed(said, "installation", str)}
        except ValueError as error:
            raise SlipwayError(f"{self.name}: its record about.json cannot be read: {error}") from None

    def send_code(self, there: There) -> Pushed:
        """Push this checkout, and what it takes to make an environment where this checkout is new."""
        code = there.places.code(checkout_id(ROOT))
        with local_files.held(self.folder / "push.lock"):  # two pushes at once would remember half of each other
            if there.is_new:
                bootstrap.bring(self.machine, PodFolder(code.parent))
            return push(self.machine, ROOT, code, checkout_id(ROOT))

    def call(self, there: There, word: str, said: Any = None) -> dict[str, Any]:
        """Return the answer of `python -m packs.control_host.control WORD` there.

        Raises SlipwayError with what the program says instead.
        """
        words = [self.machine.python, "-m", "packs.control_host.agent.begin", "packs.control_host.control", word]
        done = self.machine.run(words, cwd=there.places.code(checkout_id(ROOT)), timeout_s=MAKE_S,
                                stdin=json.dumps(said).encode(), limit_bytes=MOST_ANSWER)  # fmt: skip
        if done.exited != 0:
            kind = UsageError if done.exited == 2 else SlipwayError
            raise kind(f"{self.name}: {done.stderr.strip() or f'exit code {done.exited}'}")
        self.copy.note_seen()
        try:
            return outside.mapping(done.stdout, most_bytes=MOST_ANSWER)
        except ValueError as error:
            raise SlipwayError(f"{self.name}: its answer to {word} cannot be read: {error}") from None

    def told(self, answer: dict[str, Any], key: str, kind: type[T]) -> T:
        """Return a value of an answer of `call`. Raises SlipwayError where it is of another kind."""
        try:
            return outside.typed(answer, key, kind)
        except ValueError as error:
            raise SlipwayError(f"{self.name}: its answer cannot be read: {error}") from None

    def run(self, there: There, words: Sequence[str]) -> terminal.RemoteOutcome:
        """Run a command there, on our terminal; return how it ended. A copy of the journal is kept here.

        Raises Lost; UsageError where this machine has no ssh.
        """
        about = {"words": list(words), "cwd": _folder(), "environ": environ_of(words, os.environ),
                 "holds": self.copy.digest}  # fmt: skip
        record = there.places.calls / f"{secrets.token_hex(8)}.json"
        # The shell's variables may hold keys, which stand on no command line.
        self.machine.put(json.dumps(about).encode(), record, 0o600)
        line = [
            self.machine.python,
            "-m",
            "packs.control_host.agent.begin",
            "packs.control_host.control",
            "run",
            record.name,
        ]
        code = terminal.lend(self.machine, line, there.places.code(checkout_id(ROOT)))
        found = self.outcome(code, record)
        self.copy.note_seen()
        return self._kept(found)

    def outcome(self, code: int, record: Path) -> terminal.RemoteOutcome:
        """Return how a command ended, as its session has noted beside its record; else by the exit code of ssh.

        Nothing of the record stays there. Raises Lost, and Unreachable where the command has not begun.
        """
        words = ["sh", "-c", FETCH, "sh", str(record.with_suffix(".over")), str(record)]
        try:
            done = self.machine.run(words, timeout_s=ASK_S, limit_bytes=terminal.MOST_OUTCOME)
        except SlipwayError as error:
            raise Lost(str(error)) from None
        if done.exited == 0:
            return terminal.outcome_of(done.stdout)
        if code != terminal.LOST:
            return terminal.RemoteOutcome(code)
        if done.exited == NOT_BEGUN:
            raise Unreachable("ssh has ended before the command began")
        raise Lost("ssh has ended without the exit code of the command")

    def _kept(self, found: terminal.RemoteOutcome) -> terminal.RemoteOutcome:
        """Keep the copy of the journal that came; one that cannot be read is a problem, and the one before stays."""
        try:
            if found.archive:
                self.copy.keep(found.archive)
            elif found.digest:
                self.copy.note_current()
        except SlipwayError as error:
            return replace(found, problem=str(error))
        return found

    def run_quietly(self, there: There, words: Sequence[str], tell: Callable[[str], None]) -> None:
        """Run a command there that needs no terminal, and tell what it says. Raises SlipwayError when it fails."""
        code = there.places.code(checkout_id(ROOT))
        line = [
            self.machine.python,
            "-m",
            "packs.control_host.agent.begin",
            "invoke",
            "--search-root",
            str(code),
            *words,
        ]
        done = self.machine.run(line, cwd=code, timeout_s=MAKE_S, env={"SLIPWAY_CONTROL": HERE})
        if done.exited != 0:
            raise SlipwayError(f"{self.name}: inv {words[0]}: {done.stderr.strip() or f'exit code {done.exited}'}")
        for line_said in done.stderr.splitlines():
            tell(f"{self.name}: {line_said}")


@dataclass(frozen=True)
class JournalCopy:
    """The last copy of a control host's journal, and of the keys of its pods, in `folder`."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "copy"

    @property
    def digest(self) -> str:
        """Return a digest by which copies are compared; "" = there is none."""
        with contextlib.suppress(FileNotFoundError):
            return archive.digest(self.path.read_text())
        return ""

    @property
    def seen_at(self) -> float | None:
        """Return when its host was last seen alive, in UTC epoch seconds; None = never."""
        try:
            return float(outside.mapping((self.folder / "seen.json").read_bytes())["at"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @property
    def current_at(self) -> float | None:
        """Return when it was what the journal there was, in UTC epoch seconds; None = there is none."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_mtime
        return None

    def keep(self, text: str) -> None:
        """Replace the copy. Raises SlipwayError for one that cannot be read, and then the one before stays."""
        archive.check(text)
        local_files.replace(self.path, text.encode(), mode=0o600)

    def note_current(self) -> None:
        """Write down that the journal there is as it was when this was copied."""
        with contextlib.suppress(FileNotFoundError):  # another command has brought the journal home meanwhile
            os.utime(self.path)

    def note_seen(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self.folder / "seen.json", json.dumps({"at": time.time()}))

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


def folder_of(name: str, state_file: Path) -> Path:
    """Return the folder in which this machine keeps what it knows of a control host."""
    safe = "".join(letter if letter.isalnum() or letter in ".-_@" else "_" for letter in name)
    return state_file.with_name(f"{state_file.stem}-control") / safe


def environ_of(words: Sequence[str], environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """Return the variables that go along with a command: settings of the shell, and of its terminal.

    A place on this machine does not; neither does a store that is a folder here.
    """
    names = variables() - set(OF_THIS_MACHINE)
    names |= {*OF_THE_TERMINAL, "COLUMNS", "LINES"}
    for flag, word in zip(words, words[1:], strict=False):
        if flag in GIVING and word.isidentifier():
            names.add(word)
    names |= {word.partition("=")[2] for word in words if word.startswith(("--env=", "--secret="))}
    found = {name: environ[name] for name in names if environ.get(name)}
    if "://" not in found.get("SLIPWAY_STORE", "://"):
        del found["SLIPWAY_STORE"]
    return found


def settings_to_send(settings: Settings) -> dict[str, str]:
    """Return the settings that a control host gets for good: keys, wherever they are set, and those of .env."""
    found = {}
    for record in settings.records():
        for one in table(type(record)):
            variable, value = one.metadata["variable"], getattr(record, one.name)
            is_wanted = is_secret(variable) or record.sources[one.name] == ".env"
            if value and is_wanted and variable not in OF_THIS_MACHINE:
                found[variable] = _from_checkout(value) if one.name == "extensions" else str(value)
    if "://" in settings.store:
        found["SLIPWAY_STORE"] = settings.store
    elif "SLIPWAY_STORE" in found:
        del found["SLIPWAY_STORE"]
    return found


def _from_checkout(words: str) -> str:
    """Return files of the checkout by their paths in it, which is sent along; others as they are."""
    return ",".join(word.removeprefix(f"{ROOT}/") for word in words.split(","))


def _folder() -> str:
    """Return the current folder relative to the checkout; "." outside of it."""
    here = Path.cwd()
    return str(here.relative_to(ROOT)) if here.is_relative_to(ROOT) else "."
