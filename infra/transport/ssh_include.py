"""The user's `~/.ssh/config`: host aliases, resolved by `ssh -G`, and an included file with a `Host` block per pod.

Each block is built from a pod's name, token, address and known_hosts file; ssh, editors, rsync and notebooks then reach
pods by name. A block requires the pod's own host key, since vendors reuse addresses.
"""

import contextlib
import getpass
import glob
import os
import pwd
import re
import shlex
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infra.errors import UsageError
from infra.transport.private_keys import keys_of
from infra.transport.ssh import Ssh
from store import local_files

HEAD = "# The pods of Slipway by name; ./inv updates this file. To remove the file: ./inv ssh --config --remove\n"
_BLOCK = re.compile(r"^# pod (\S+) (\S+)\n(?:[^#\n].*\n)*", re.MULTILINE)
_SCOPE = re.compile(r"(?i)\s*(host|match)\b")
_INCLUDE = re.compile(r"(?i)\s*include[\s=]+(.*)")
_DIRECTIVE = re.compile(r"""\s*([^\s=#"]+)(?:\s*=\s*|\s+)(.*)""")
PLAIN = {  # options protected from a user's `Host *`: target machine, key, no forwarding
    "BatchMode": "yes",
    "PasswordAuthentication": "no",
    "ControlPath": "none",
}
MOST_INCLUDES = 16  # ssh's own limit
ANSWER_S = 10.0


class NoConfiguration(UsageError):
    """ssh rejects its configuration, or cannot show it, as Dropbear. `reason`: without the host."""

    def __init__(self, host: str, reason: str) -> None:
        super().__init__(f"ssh -G {host}: {reason}")
        self.reason = reason


@dataclass(frozen=True)
class PodNames:
    """The ssh configuration file of a journal."""

    path: Path

    @staticmethod
    def for_journal(journal: Path) -> "PodNames":
        return PodNames(journal.absolute().with_name(f"{journal.stem}-ssh-config"))

    @property
    def exists(self) -> bool:
        """Return whether the file exists; the file is created on a user's request."""
        return self.path.is_file()

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the lock of the file; read the inputs of a change within the block."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with local_files.holding_lock(self.path.with_name(f"{self.path.name}.lock"), mode=0o600):
            yield

    def read(self) -> dict[str, str]:
        """Return the blocks of the file, by pod token."""
        with contextlib.suppress(FileNotFoundError):
            return {found[2]: found[0] for found in _BLOCK.finditer(self.path.read_text(encoding="utf-8"))}
        return {}

    def write(self, blocks: Mapping[str, str]) -> None:
        """Write the blocks, unless the file already holds exactly them."""
        text = "\n".join([HEAD, *blocks.values()]).encode()
        if not self.exists or self.path.read_bytes() != text:
            local_files.replace(self.path, text, mode=0o600)

    def remove(self) -> bool:
        """Remove the file and return whether it existed."""
        was_there = self.path.exists()
        self.path.unlink(missing_ok=True)
        return was_there

    @property
    def include_line(self) -> str:
        """Return the `Include` line for this file."""
        return f"Include {_quoted(self.path)}"


def block(name: str, token: str, way: Ssh) -> str:
    """Return the block of a pod. Raises UsageError for a path with characters not allowed in an ssh configuration."""
    _quoted(way.known_hosts)
    told = [
        ("HostName", way.address.host.replace("%", "%%")),
        ("Port", str(way.address.port)),
        ("User", way.address.user),
        *(("IdentityFile", _quoted(one).replace("%", "%%")) for one in keys_of(way.address)),
        *way.openssh_options,
        *PLAIN.items(),
    ]
    return f"# pod {name} {token}\nHost {name}\n" + "".join(f"  {key} {value}\n" for key, value in told)


def is_included(config: Path, line: str) -> bool:
    """Return whether `config` includes the file of `line` before any `Host` or `Match`, so for every host."""
    for one in _lines(config):
        if _SCOPE.match(one):
            return False
        if (found := _INCLUDE.match(one)) and found[1].strip().strip('"') == line.removeprefix("Include ").strip('"'):
            return True
    return False


def include(config: Path, line: str) -> None:
    """Insert the line at the top of the user's ssh config; create a missing file and keep all other lines."""
    place = _place(config)
    with local_files.holding_lock(place.with_name(".slipway.lock"), mode=0o600):
        if not is_included(config, line):
            _write(place, f"{line}\n".encode() + (place.read_bytes() if place.exists() else b""))


def leave_out(config: Path, line: str) -> bool:
    """Remove the line from the user's ssh config; return whether the line was present."""
    place = _place(config)
    if not place.exists():
        return False
    with local_files.holding_lock(place.with_name(".slipway.lock"), mode=0o600):
        before = place.read_bytes()
        kept = [one for one in before.splitlines(keepends=True) if one.strip() != line.encode()]
        if b"".join(kept) == before:
            return False
        _write(place, b"".join(kept))
    return True


def _place(config: Path) -> Path:
    """Return the real path of the user's ssh config, which may be a symbolic link into a dotfiles folder."""
    config.parent.mkdir(mode=0o700, exist_ok=True)
    return config.resolve()


def _write(place: Path, content: bytes) -> None:
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o600
    local_files.replace(place, content, mode=mode)


def _lines(config: Path) -> list[str]:
    with contextlib.suppress(OSError):  # also a folder that a pattern of `Include` matches
        return config.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    return []


def _quoted(path: Path) -> str:
    text = str(path)
    if not text.isprintable() or set(text) & set('"\\*?['):
        raise UsageError(f"{text!r} is not valid in a config file of ssh; choose a folder without such letters")
    return f'"{text}"'


@dataclass(frozen=True)
class Resolved:
    host: str
    user: str
    port: int
    keys: tuple[Path, ...]  # in order of preference; may not exist
    proxy: str = ""  # see `Address`
    certificates: tuple[str, ...] = ()
    agent: str = ""


def aliases(config: Path, depth: int = 0, but: Path | None = None) -> Iterator[str]:
    """Yield the `Host` names without wildcards in `config` and included files, except in the file `but`."""
    for key, words in _directives(config) if depth <= MOST_INCLUDES and config != but else ():
        if key == "host":
            yield from (word for word in words if not set(word) & set("*?!"))
        for path in _included(words, config) if key == "include" else ():
            yield from aliases(path, depth + 1, but)


def _directives(config: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield keyword and words of each line that has both."""
    for found in filter(None, map(_DIRECTIVE.fullmatch, _lines(config))):
        with contextlib.suppress(ValueError):  # unclosed quote: ssh reports the error
            yield found[1].lower(), shlex.split(found[2], comments=True)


def _included(words: Sequence[str], config: Path) -> Iterator[Path]:
    """Yield the files named by `Include` in `config`; in a file below `.ssh`, relative names begin at `.ssh`."""
    base = next((one for one in config.parents if one.name == ".ssh"), config.parent)
    for word in words:
        yield from map(Path, sorted(glob.glob(str(base / os.path.expanduser(word)))))


def can_ask() -> bool:
    """Return whether ssh is installed, and knows the user of this process."""
    return bool(_own_home() and shutil.which("ssh"))


def _own_home() -> str:
    """Return the home in which ssh looks for its configuration: $HOME does not count. "" for an unknown user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return ""


def _flags(config: Path) -> tuple[str, ...]:
    """Return the flags with which ssh reads `config`.

    Without flags, ssh reads the user's own file and the configuration of the system; `-F` excludes the latter.
    """
    if os.path.realpath(config) == os.path.realpath(Path(_own_home(), ".ssh", "config")):
        return ()
    return ("-F", str(config) if config.is_file() else "none")


def resolve(alias: str, config: Path, port: int | None = None, user: str = "") -> Resolved:
    """Resolve a host to address, user, port, keys and proxy, as `ssh` does.

    `port`, `user`: override the configuration. Raises NoConfiguration if ssh rejects the file, and UsageError if ssh is
    missing, if ssh does not answer in time, or for a proxy that passes file descriptors.
    """
    if not shutil.which("ssh"):
        raise UsageError(f"{alias} is an alias of {config}, but ssh is not installed; give the address of the machine")
    given = [*(("-p", str(port)) if port else ()), *(("-l", user) if user else ())]
    # ssh replaces the tokens in the path of a socket, but not in the paths of keys.
    words, flags = ["-o", "ControlPath=%C", *given, "--", alias], _flags(config)
    try:
        said = _answer(flags, words, config)
    except NoConfiguration:
        if flags or not config.is_file():
            raise
        # Without -F, ssh rejects a file of another owner, as in a container, or that others may write.
        flags = ("-F", str(config))
        said = _answer(flags, words, config)
    values = dict(reversed(said))
    host, port, user, local = values["hostname"], int(values["port"]), values["user"], socket.gethostname()
    home = str(config.parent.parent if config.parent.name == ".ssh" else Path.home())
    jump = "" if values.get("proxyjump", "none") == "none" else values["proxyjump"]
    tokens = {"%%": "%", "%h": host, "%p": values["port"], "%r": user, "%n": alias}
    own = {"%d": home, "%u": getpass.getuser(), "%i": str(os.getuid()), "%l": local, "%j": jump}
    own |= {"%L": local.partition(".")[0], "%k": values.get("hostkeyalias", alias)}
    own |= {"%C": values.get("controlpath", "")}

    def paths(name: str) -> list[str]:
        written = [os.path.expandvars(_expand(value, tokens | own)) for key, value in said if key == name]
        return [home + one[1:] if one.startswith("~/") else os.path.expanduser(one) for one in written]

    agent = next((one for one in paths("identityagent") if one != "SSH_AUTH_SOCK"), "")
    certificates = tuple(filter(os.path.isfile, paths("certificatefile")))
    keys = tuple(map(Path, paths("identityfile")))
    found = Resolved(host, user, port, keys, certificates=certificates, agent=agent)
    if jump:
        return replace(found, proxy=_jump(jump, found, flags))
    if values.get("proxycommand", "none") == "none":
        return found
    if values.get("proxyusefdpass") == "yes":
        raise UsageError(f"{alias}: ProxyUseFdpass is not supported; use a ProxyCommand such as: nc %h %p")
    return replace(found, proxy=_expand(values["proxycommand"], tokens))


def _answer(flags: Sequence[str], words: Sequence[str], config: Path) -> list[tuple[str, str]]:
    """Return the lines of `ssh -G` as keywords and values."""
    try:
        done = subprocess.run(
            ["ssh", "-G", *flags, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:  # a `Match exec` of the configuration
        raise UsageError(
            f"ssh -G {words[-1]}: no answer in {ANSWER_S:g} s; check the `Match exec` lines of {config}"
        ) from None
    said = [(key, value) for key, _, value in (line.partition(" ") for line in os.fsdecode(done.stdout).split("\n"))]
    if done.returncode != 0 or not {"hostname", "port", "user"} <= {key for key, _ in said}:
        reason = " ".join(os.fsdecode(done.stderr).split())
        raise NoConfiguration(words[-1], reason or "the answer names no host, port and user")
    return said


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    return re.sub(r"%.", lambda one: tokens.get(one[0], one[0]), text)


def _jump(jumps: str, to: Resolved, flags: Sequence[str]) -> str:
    """Return the `ssh` command that forwards its stdin and stdout through the jump hosts, as ssh does by itself."""
    *before, last = jumps.split(",")
    words = ["ssh", *flags, "-o", "BatchMode=yes", *(("-J", ",".join(before)) if before else ())]
    last = last if last.startswith("ssh://") else f"ssh://{last}"
    return shlex.join([*words, "-W", f"[{to.host}]:{to.port}", "--", last])
