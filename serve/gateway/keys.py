"""API keys of which only the hash is stored.

A key is 32 random bytes, so that its plain SHA-256 cannot be searched; slow hashes are for passwords. The file has one
line for each: `name sha256`. In: the file, and what a client says. Out: the name of the key, or None.
"""

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from infra.agent.job import write_durably
from infra.errors import UsageError
from serve.gateway.http.limits import GatewayLimits

PREFIX = "slipway-"
LEAST_LETTERS = 16  # of a key: a shorter one can be guessed, whoever made it
WRONG_AT_ONCE = 20  # wrong keys by people, and by programs with an old key
MOST_ADDRESSES = 10_000  # addresses that are remembered
SEED_BYTES = 32
READ_EVERY_S = 1.0  # interval at which a gateway at work reads them
COUNTS_AFTER_S = 2.0  # at most, from when the file is written
_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}) ([0-9a-f]{64})")


class Keys:
    """The keys of a gateway: name -> SHA-256 of the key, in hex."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = [(name, bytes.fromhex(digest)) for name, digest in hashes.items()]

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def take(self, others: "Keys") -> None:
        """Replace the keys, for whoever holds this object."""
        self._hashes = others._hashes

    def name_of(self, authorization: bytes) -> str | None:
        """Return the name of the key in `Bearer KEY`; None when there is none such, or the key is short.

        Takes as long for each wrong one.
        """
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        found = None
        for name, known in self._hashes:  # all of them, whichever it is
            if hmac.compare_digest(digest, known):
                found = name
        is_long = len(key.strip()) >= LEAST_LETTERS
        return found if is_long and scheme.lower() == b"bearer" else None


class Guesses:
    """The delay of the answer to a wrong key, by the address it came from. Pure: time is an argument.

    A key cannot be guessed; but each try is work, and thousands a second are much of it. An address has `WRONG_AT_ONCE`
    answers at once, then so many a second as the limits say, each a bit later than the one before.
    """

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()  # when its last answer is due; the last one to come last

    def wait_s(self, address: str, now: float, limits: GatewayLimits) -> float:
        """Return the delay in seconds of the answer to a wrong key that came now."""
        step_s, ahead_s = 1 / limits.wrong_keys_per_s, WRONG_AT_ONCE / limits.wrong_keys_per_s
        until = max(self._until.pop(address, now), now) + step_s
        self._until[address] = until = min(until, now + ahead_s + limits.wrong_key_most_s)
        if len(self._until) > MOST_ADDRESSES:
            self._until.popitem(last=False)
        return max(0.0, until - now - ahead_s)


def make(name: str) -> tuple[str, str]:
    """Return a new key, to be shown once, and its line for the file.

    Raises UsageError for a name with odd characters.
    """
    key = PREFIX + secrets.token_urlsafe(32)
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if not _LINE.fullmatch(line):
        raise UsageError(f"{name!r} is not a valid name of a key: use letters, digits, dots and dashes, 64 at most")
    return key, line


def seed(path: Path) -> bytes:
    """Return the secret from which the keys of engines are made: drawn once, and then the same for every controller.

    Is the file gone or damaged, another one is drawn: engines that run then refuse to answer, and are replaced.
    """
    try:
        found = bytes.fromhex(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        found = b""
    if len(found) != SEED_BYTES:
        found = secrets.token_bytes(SEED_BYTES)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(path, found.hex(), 0o600)
    return found


def engine_key(seed: bytes, run: str) -> str:
    """Return the key that the engine of `run` asks for, behind the gateway's own keys.

    It is told to that engine alone.
    """
    return hmac.digest(seed, run.encode(), "sha256").hex()


def load(path: Path) -> Keys:
    """Return the keys in a file.

    Raises UsageError when the file is not as `make` writes it, or others than its owner may write to it.
    """
    try:
        if path.stat().st_mode & 0o022:
            raise UsageError(f"{path}: others may write to it; run: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    hashes: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or found[1] in hashes:
            what = "expected `name sha256`" if found is None else f"a second key called {found[1]}"
            raise UsageError(f"{path}: line {number}: {what}")
        hashes[found[1]] = found[2]
    return Keys(hashes)
