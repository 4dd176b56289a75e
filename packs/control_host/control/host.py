"""Client side of a control host: the connection, the push before a command, and the local copy of the journal.

A `ControlHost` takes the host name typed by the user, and runs commands over a single SSH connection. A folder beside
the local journal stores the pinned host key, the last copy of the remote journal, and the time of the last contact.
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
from infra.transport.protocol import ConnectionLost, Unreachable
from infra.transport.push import PushResult, push
from infra.transport.ssh import Ssh
from packs.control_host.control import archive, terminal
from packs.control_host.control.host_paths import HostPaths, checkout_id
from packs.control_host.control.settings import HERE
from store import local_files, untrusted_input
from trainer.fingerprints import SENT, CheckoutCode

T = TypeVar("T")

ASK_S = 30.0
MOST_ANSWER = archive.MOST_TEXT + (1 << 20)  # bytes; an answer may contain an archive
MAKE_S = 900.0  # creation of the command environment, with packages over a slow line
# Ask for the root folder of the host, whether the host knows this checkout, and the record of the installation.
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
# Print the outcome of a command. Without an outcome, remove the record of the command: a session removes the record on
# start, so a remaining record means a command without a session.
FETCH = f'cat "$1" 2>/dev/null && exec rm -f "$1"; rm "$2" 2>/dev/null && exit {NOT_BEGUN}; exit 1'
# Settings about this machine, which have no meaning on the control host.
OF_THIS_MACHINE = (
    "SLIPWAY_STATE_FILE",
    "SLIPWAY_PODS",
    "SLIPWAY_POOLS",
    "SLIPWAY_ENVIRONMENTS",
    "SLIPWAY_INSTALLER",
    "SLIPWAY_WORKSPACE",
    "SLIPWAY_REHEARSAL",
    "SLIPWAY_CONTROL",
    "SLIPWAY_RAY_PYTHON",
)
OF_THE_TERMINAL = ("TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
GIVING = ("-e", "--env", "--secret")  # flags with a bare name, which takes the value of the shell variable


@dataclass(frozen=True)
class HostDescription:
    """The self-description of a control host."""

    places: HostPaths
    about: dict[str, Any]  # {} = not a control host (any more)
    is_new: bool  # the host has not seen this checkout before


@dataclass(frozen=True)
class ControlHost:
    """The control host `name`; `folder` holds the local state about the host."""

    name: str
    machine: Ssh
    folder: Path

    @staticmethod
    def from_settings(name: str, settings: Settings) -> "ControlHost":
        """Return the machine called `name` without contacting the machine. Raises UsageError."""
        found = inventory.reach(name, settings.pools)
        folder = folder_of(name, settings.state_file)
        machine = Ssh(found.address, folder / "known_hosts")
        machine.python = found.python
        return ControlHost(name, machine, folder)

    @property
    def copy(self) -> "JournalCopy":
        return JournalCopy(self.folder)

    def describe(self) -> HostDescription:
        """Return the self-description of the host, and create the folder of this checkout. Raises SlipwayError."""
        done = self.machine.run(["sh", "-c", ASK, "sh", checkout_id(ROOT)], timeout_s=ASK_S)
        root, known, *about = [*(done.stdout.splitlines() if done.exited == 0 else []), "", ""]
        if not root.startswith("/"):
            raise SlipwayError(f"{self.name}: the folder of Slipway cannot be created: {done.stderr.strip()}")
        self.copy.mark_seen()
        return HostDescription(
            HostPaths(Path(root)), self._about(about[0]) if about and about[0] else {}, known == "new"
        )

    def _about(self, line: str) -> dict[str, Any]:
        """Parse the record of the control host. Raises SlipwayError."""
        try:
            said = untrusted_input.mapping(line)
            return {**said, "installation": untrusted_input.typed(said, "installation", str)}
        except ValueError as error:
            raise SlipwayError(f"{self.name}: the record about.json cannot be read: {error}") from None

    def send_code(self, there: HostDescription) -> PushResult:
        """Push this checkout; for a new checkout, first send the files that build an environment."""
        code = there.places.code(checkout_id(ROOT))
        # Concurrent pushes would record each other's partial state.
        with local_files.holding_lock(self.folder / "push.lock"):
            if there.is_new:
                bootstrap.bring(self.machine, PodFolder(code.parent))
            return push(self.machine, ROOT, code, checkout_id(ROOT))

    def call(self, there: HostDescription, word: str, said: Any = None) -> dict[str, Any]:
        """Run `python -m packs.control_host.control WORD` on the host; return the answer.

        Raises UsageError for exit code 2 and SlipwayError for other failures, with the stderr of the program.
        """
        words = [self.machine.python, "-m", "packs.control_host.agent.begin", "packs.control_host.control", word]
        done = self.machine.run(
            words,
            cwd=there.places.code(checkout_id(ROOT)),
            timeout_s=MAKE_S,
            stdin=json.dumps(said).encode(),
            limit_bytes=MOST_ANSWER,
        )
        if done.exited != 0:
            kind = UsageError if done.exited == 2 else SlipwayError
            raise kind(f"{self.name}: {done.stderr.strip() or f'exit code {done.exited}'}")
        self.copy.mark_seen()
        try:
            return untrusted_input.mapping(done.stdout, most_bytes=MOST_ANSWER)
        except ValueError as error:
            raise SlipwayError(f"{self.name}: the answer to {word} cannot be read: {error}") from None

    def typed_value(self, answer: dict[str, Any], key: str, kind: type[T]) -> T:
        """Return the value of `key` from an answer of `call`. Raises SlipwayError for a value of a different type."""
        try:
            return untrusted_input.typed(answer, key, kind)
        except ValueError as error:
            raise SlipwayError(f"{self.name}: the answer cannot be read: {error}") from None

    def run(self, there: HostDescription, words: Sequence[str]) -> terminal.RemoteOutcome:
        """Run a command on the host with the local terminal; return the outcome and store the copy of the journal.

        Raises ConnectionLost for a broken connection, and UsageError without ssh on this machine.
        """
        about = {
            "words": list(words),
            "cwd": _folder(),
            "environ": environ_of(words, os.environ) | {SENT: CheckoutCode(ROOT).sent_state()},
            "holds": self.copy.digest,
        }
        record = there.places.calls / f"{secrets.token_hex(8)}.json"
        # Shell variables may hold keys; a file keeps these keys out of the process list.
        self.machine.put(json.dumps(about).encode(), record, 0o600)
        line = [
            self.machine.python,
            "-m",
            "packs.control_host.agent.begin",
            "packs.control_host.control",
            "run",
            record.name,
        ]
        code = terminal.run_with_terminal(self.machine, line, there.places.code(checkout_id(ROOT)))
        found = self.outcome(code, record)
        self.copy.mark_seen()
        return self._store_copy(found)

    def outcome(self, code: int, record: Path) -> terminal.RemoteOutcome:
        """Return the outcome of a command from the session record, or else from the exit code of ssh.

        Remove the record from the host. Raises ConnectionLost, and Unreachable when the command never began.
        """
        words = ["sh", "-c", FETCH, "sh", str(record.with_suffix(".over")), str(record)]
        try:
            done = self.machine.run(words, timeout_s=ASK_S, limit_bytes=terminal.MOST_OUTCOME)
        except SlipwayError as error:
            raise ConnectionLost(str(error)) from None
        if done.exited == 0:
            return terminal.outcome_of(done.stdout)
        if code != terminal.LOST:
            return terminal.RemoteOutcome(code)
        if done.exited == NOT_BEGUN:
            raise Unreachable("ssh ended before the command began")
        raise ConnectionLost("ssh ended without the exit code of the command")

    def _store_copy(self, found: terminal.RemoteOutcome) -> terminal.RemoteOutcome:
        """Store the received copy of the journal; on an unreadable copy, keep the old copy and report the problem."""
        try:
            if found.archive:
                self.copy.save(found.archive)
            elif found.digest:
                self.copy.mark_current()
        except SlipwayError as error:
            return replace(found, problem=str(error))
        return found

    def run_quietly(self, there: HostDescription, words: Sequence[str], tell: Callable[[str], None]) -> None:
        """Run a command without a terminal and pass its messages to `tell`. Raises SlipwayError on failure."""
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
    """The last copy of a control host's journal and pod keys, stored in `folder`."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "copy"

    @property
    def digest(self) -> str:
        """Return a digest for comparing copies; "" without a copy."""
        with contextlib.suppress(FileNotFoundError):
            return archive.digest(self.path.read_text())
        return ""

    @property
    def seen_at(self) -> float | None:
        """Return the time of the last contact with the host in UTC epoch seconds; None without contact."""
        try:
            return float(untrusted_input.mapping((self.folder / "seen.json").read_bytes())["at"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    @property
    def current_at(self) -> float | None:
        """Return the time when the copy last matched the host's journal, in UTC epoch seconds; None without a copy."""
        with contextlib.suppress(FileNotFoundError):
            return self.path.stat().st_mtime
        return None

    def save(self, text: str) -> None:
        """Replace the copy. Raises SlipwayError for an unreadable archive, and then keeps the old copy."""
        archive.check(text)
        local_files.replace(self.path, text.encode(), mode=0o600)

    def mark_current(self) -> None:
        """Record that the journal of the host still matches the copy, by updating the file time."""
        with contextlib.suppress(FileNotFoundError):  # a concurrent command brought the journal home
            os.utime(self.path)

    def mark_seen(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(self.folder / "seen.json", json.dumps({"at": time.time()}))

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


def folder_of(name: str, state_file: Path) -> Path:
    """Return the local folder of state about a control host."""
    safe = "".join(letter if letter.isalnum() or letter in ".-_@" else "_" for letter in name)
    return state_file.with_name(f"{state_file.stem}-control") / safe


def environ_of(words: Sequence[str], environ: "os._Environ[str] | dict[str, str]") -> dict[str, str]:
    """Return the environment variables sent with a command: settings, terminal, and variables named by flags.

    Settings of this machine are excluded, and so is a store in a local folder.
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
    """Return the permanent settings of a control host: all secrets, and the values from .env."""
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
    """Return paths inside the checkout relative to the checkout root; leave other paths unchanged."""
    return ",".join(word.removeprefix(f"{ROOT}/") for word in words.split(","))


def _folder() -> str:
    """Return the current folder relative to the checkout; "." outside of the checkout."""
    here = Path.cwd()
    return str(here.relative_to(ROOT)) if here.is_relative_to(ROOT) else "."
