"""Bootstrap of a bare machine without uv and without the package index settings of this machine.

`bring` writes `state/packages.json` of the pod and sends the local uv once into the machine's cache, when the platforms
match and the machine has no usable uv. Otherwise the pod installs uv with pip, or falls back to pip: see
`infra/agent/environments/environment.py`.
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
from infra.agent.environments.packages import CarriedSources, portable_sources
from infra.agent.job import PodFolder
from infra.agent.step_zero import packages_of
from infra.errors import SlipwayError, UsageError
from infra.transport.protocol import Transport

ASK_S = 30.0
SLOWEST_BYTES_PER_S = 50_000
FOLDER = "~/.cache/slipway/tools"
# One request writes the package settings and returns the system, the libc, whether a copy of uv was sent before, and
# the version of every installed uv.
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
        sys.exit("uv arrived damaged")
    os.chmod(draft, 0o755)
    done = subprocess.run([draft, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        sys.exit(f"uv does not run on that machine: {done.stdout.decode(errors='replace').strip()}")
    os.replace(draft, place)
finally:
    if os.path.exists(draft):
        os.unlink(draft)
"""


def bring(transport: Transport, pod: PodFolder) -> str:
    """Prepare `pod` for environment set-up and return a message about uv.

    Safe to repeat: a second call does not send uv again. Raises SlipwayError when the machine cannot be queried, and
    UsageError when the local pip configuration cannot be read.
    """
    uv = _ours()
    place = f"{FOLDER}/uv-{uv[1][:16]}" if uv else ""
    try:
        carried = CarriedSources(uv=place, settings=portable_sources())
    except (configparser.Error, UnicodeDecodeError) as error:
        raise UsageError(f"pip's configuration cannot be read: {error}; run: pip config debug") from error
    asked = ["sh", "-c", ASK, "sh", str(packages_of(pod)), place, "uv", *OWN_UV]
    done = transport.run(asked, stdin=json.dumps(asdict(carried)).encode(), timeout_s=ASK_S)
    if done.exited != 0:
        raise SlipwayError(
            f"{pod.root}: the tools of the pod cannot be listed: {done.stderr.strip() or f'exit code {done.exited}'}"
        )
    system, libc, *there = done.stdout.splitlines()
    if any(map(is_usable, there)):
        return "uv is installed"
    if "brought" in there:
        return "uv was sent earlier"
    if uv is None or (system, libc.split()[0]) != _here():
        return f"no uv for {system}, {libc}: the pod downloads uv"
    return _send(transport, *uv, place)


def _ours() -> tuple[Path, str] | None:
    """Return the path of uv in the running environment and the sha256 of the file, or None without uv."""
    path = Path(sysconfig.get_path("scripts")) / "uv"
    return (path, hashlib.sha256(path.read_bytes()).hexdigest()) if path.is_file() else None


def _here() -> tuple[str, str]:
    about = platform.uname()
    return f"{about.system} {about.machine}", platform.libc_ver()[0] or "other"


def _send(transport: Transport, uv: Path, sha: str, place: str) -> str:
    size = uv.stat().st_size
    words = [transport.python, "-IS", "-c", TAKE, place, sha]
    done = transport.run(words, stdin=_packed(uv), timeout_s=ASK_S + size / SLOWEST_BYTES_PER_S)
    if done.exited != 0:  # set-up works without uv, only slower
        return f"uv was sent, but is not used: {(done.stderr.strip() or f'exit code {done.exited}').splitlines()[-1]}"
    return f"uv sent, {size / 1e6:.0f} MB"


def _packed(path: Path) -> Iterator[bytes]:
    deflate = zlib.compressobj(1)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            yield deflate.compress(piece)
    yield deflate.flush()
