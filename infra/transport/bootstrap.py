"""The bootstrap of a bare machine, which may lack a copy of uv and the sources of packages.

In: the transport to a pod. Out: `state/packages.json` of the pod, and our own uv in the machine's cache, sent once,
when it fits and the machine has none that it can use. Where neither is the case the pod fetches uv with pip, else pip
does the work: see `infra/agent/environments/environment.py`.
"""

import configparser
import hashlib
import json
import platform
import sysconfig
import zlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from infra.agent.environments.environment import OWN_UV, is_usable
from infra.agent.environments.packages import CarriedSources, to_carry
from infra.agent.job import PodFolder
from infra.agent.step_zero import packages_of
from infra.errors import SlipwayError, UsageError
from infra.transport.protocol import Transport

ASK_S = 30.0
SLOWEST_BYTES_PER_S = 50_000
FOLDER = "~/.cache/slipway/tools"
# Ask in one exchange for the system, its libc, our copy of uv, and the version of every uv of its own.
ASK = """
mkdir -p -- "${1%/*}" && cat > "$1.draft" && mv -f "$1.draft" "$1" || exit 1
uname -sm; getconf GNU_LIBC_VERSION 2>/dev/null || echo other
[ -f "$HOME${2#'~'}" ] && echo brought
shift 2
for uv; do case $uv in '~'*) uv=$HOME${uv#'~'};; esac; said=$("$uv" --version 2>/dev/null) && echo "$said"; done
exit 0
"""
TAKE = """
import hashlib, os, subprocess, sys, zlib
place, sha = os.path.expanduser(sys.argv[1]), hashlib.sha256()
os.makedirs(os.path.dirname(place), exist_ok=True)
draft, inflate = f"{place}.{os.getpid()}.draft", zlib.decompressobj()
try:
    with open(draft, "wb") as file:
        for piece in iter(lambda: sys.stdin.buffer.read(1 << 20), b""):
            plain = inflate.decompress(piece)
            sha.update(plain)
            file.write(plain)
    if sha.hexdigest() != sys.argv[2]:
        sys.exit("it arrived damaged")
    os.chmod(draft, 0o755)
    done = subprocess.run([draft, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"it does not run there: {done.stdout.decode(errors='replace').strip()}")
    os.replace(draft, place)
finally:
    if os.path.exists(draft):
        os.unlink(draft)
"""


def bring(transport: Transport, pod: PodFolder) -> str:
    """Make `pod` ready for set-up; what is to be told about that. May be repeated: what is there is not sent again.

    Raises SlipwayError when the machine cannot be asked, UsageError when pip's configuration here cannot be read.
    """
    uv = _ours()
    place = f"{FOLDER}/uv-{uv[1][:16]}" if uv else ""
    try:
        carried = CarriedSources(uv=place, settings=to_carry())
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"pip's configuration cannot be read: {error}; run: pip config debug") from error
    asked = ["sh", "-c", ASK, "sh", str(packages_of(pod)), place, "uv", *OWN_UV]
    done = transport.run(asked, stdin=json.dumps(asdict(carried)).encode(), timeout_s=ASK_S)
    if done.exited != 0:
        raise SlipwayError(
            f"{pod.root}: its tools cannot be listed: {done.stderr.strip() or f'exit code {done.exited}'}"
        )
    system, libc, *there = done.stdout.splitlines()
    if any(map(is_usable, there)):
        return "it has uv"
    if "brought" in there:
        return "uv was brought before"
    if uv is None or (system, libc.split()[0]) != _here():
        return f"no uv for {system}, {libc}: it is fetched there"
    return _send(transport, *uv, place)


def _ours() -> tuple[Path, str] | None:
    """Return uv of the environment that runs this, and its sha256."""
    path = Path(sysconfig.get_path("scripts")) / "uv"
    return (path, hashlib.sha256(path.read_bytes()).hexdigest()) if path.is_file() else None


def _here() -> tuple[str, str]:
    about = platform.uname()
    return f"{about.system} {about.machine}", platform.libc_ver()[0] or "other"


def _send(transport: Transport, uv: Path, sha: str, place: str) -> str:
    size = uv.stat().st_size
    words = [transport.python, "-IS", "-c", TAKE, place, sha]
    done = transport.run(words, stdin=_packed(uv), timeout_s=ASK_S + size / SLOWEST_BYTES_PER_S)
    if done.exited != 0:  # set-up works without it, only slower
        return f"uv was sent and is not used: {(done.stderr.strip() or f'exit code {done.exited}').splitlines()[-1]}"
    return f"uv sent, {size / 1e6:.0f} MB"


def _packed(path: Path) -> Iterator[bytes]:
    deflate = zlib.compressobj(1)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield deflate.compress(piece)
    yield deflate.flush()
