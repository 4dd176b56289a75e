"""Host aliases of the user's `~/.ssh/config`, resolved by `ssh -G`."""

import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

MOST_INCLUDES = 16  # ssh's own limit
ANSWER_S = 10.0


@dataclass(frozen=True)
class Resolved:
    host: str
    user: str
    port: int
    keys: tuple[Path, ...]  # in order of preference; may not exist


def aliases(config: Path, depth: int = 0, but: Path | None = None) -> Iterator[str]:
    """Yield the `Host` names without wildcards in `config` and included files, except in the file `but`."""
    if depth > MOST_INCLUDES or not config.is_file() or config == but:
        return
    for line in config.read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:  # unclosed quote: ssh reports the error
            continue
        if key.lower() == "host":
            yield from (word for word in words if not set(word) & set("*?!"))
        elif key.lower() == "include":
            for word in words:
                pattern = Path(word).expanduser()
                place = pattern if pattern.is_absolute() else config.parent / pattern
                for path in sorted(Path(place.anchor).glob(str(place.relative_to(place.anchor)))):
                    yield from aliases(path, depth + 1, but)


def resolve(alias: str, config: Path) -> Resolved:
    """Resolve an alias to host, user, port and keys.

    Raises UsageError if ssh is missing, if ssh rejects the file, or if the alias needs a proxy.
    """
    if not shutil.which("ssh"):
        raise UsageError(f"{alias} is an alias of {config}, but ssh is not installed; give the address of the machine")
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), alias],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
    )
    if done.returncode != 0:
        raise UsageError(f"ssh -G {alias}: {' '.join(done.stderr.split())}")
    said = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    values = dict(reversed(said))
    for key in ("proxyjump", "proxycommand"):
        if values.get(key, "none") != "none":
            raise UsageError(f"{alias} is reached through {key} {values[key]}; only direct connections are supported")
    keys = tuple(Path(value).expanduser() for key, value in said if key == "identityfile")
    return Resolved(values["hostname"], values["user"], int(values["port"]), keys)
