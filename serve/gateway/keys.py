"""API keys, stored as hashes only.

A key is 32 random bytes, so an attacker cannot search a plain SHA-256; slow hashes are for passwords. The key file has
one line `name sha256` per key, or `name sha256 model,model` for a key that may use only these models. `Keys.name_of`
maps an Authorization header to the name of a key or None.
"""

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from infra.agent.job import write_durably
from infra.errors import UsageError
from serve.gateway.http.limits import GatewayLimits

PREFIX = "slipway-"
LEAST_LETTERS = 16  # letters of a key: a shorter key can be guessed, generated or chosen
WRONG_AT_ONCE = 20  # wrong keys from typing errors and from programs with an old key
MOST_ADDRESSES = 10_000  # number of remembered addresses
SEED_BYTES = 32
READ_EVERY_S = 1.0  # interval at which a running gateway reads the key file
COUNTS_AFTER_S = 2.0  # maximum delay until a written key is in force
_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}) ([0-9a-f]{64})(?: ([A-Za-z0-9._/,-]{1,4096}))?")


class Keys:
    """Keys of a gateway: name -> SHA-256 of the key, in hex; and name -> models, for keys with a choice of models."""

    def __init__(self, hashes: Mapping[str, str], models: Mapping[str, Collection[str]] = MappingProxyType({})) -> None:
        self._hashes = [(name, bytes.fromhex(digest)) for name, digest in hashes.items()]
        self._models = models

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def replace(self, others: "Keys") -> None:
        """Replace the keys for every holder of this object."""
        self._hashes, self._models = others._hashes, others._models

    def models_of(self, name: str) -> Collection[str] | None:
        """Return the models that the holder of a key may use; None = all."""
        return self._models.get(name)

    def name_of(self, authorization: bytes) -> str | None:
        """Return the name of the key in `Bearer KEY`; None for an unknown key or a short key.

        The comparison takes the same time for every wrong key.
        """
        scheme, _, key = authorization.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        found = None
        for name, known in self._hashes:  # compare all keys, for constant time
            if hmac.compare_digest(digest, known):
                found = name
        is_long = len(key.strip()) >= LEAST_LETTERS
        return found if is_long and scheme.lower() == b"bearer" else None


class AuthThrottle:
    """Delay of the answer to a wrong key, by client address. Pure: time is an argument.

    Keys cannot be guessed, but every attempt is work, and thousands per second are a load. An address gets
    `WRONG_AT_ONCE` immediate answers, then as many per second as the limits allow, each a bit later than the previous.
    """

    def __init__(self) -> None:
        # Address -> time when the last answer is due, ordered by the last attempt.
        self._until: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, address: str, now: float, limits: GatewayLimits) -> float:
        """Return the delay in seconds of the answer to a wrong key received at `now`."""
        step_s, ahead_s = 1 / limits.wrong_keys_per_s, WRONG_AT_ONCE / limits.wrong_keys_per_s
        until = max(self._until.pop(address, now), now) + step_s
        self._until[address] = until = min(until, now + ahead_s + limits.wrong_key_most_s)
        if len(self._until) > MOST_ADDRESSES:
            self._until.popitem(last=False)
        return max(0.0, until - now - ahead_s)


def make(name: str, models: Sequence[str] = ()) -> tuple[str, str]:
    """Return a new key, to be shown once, and the line for the key file.

    models: names of the models that the holder may use; () = all. Raises UsageError for an invalid name.
    """
    key = PREFIX + secrets.token_urlsafe(32)
    line = f"{name} {hashlib.sha256(key.encode()).hexdigest()}"
    if not _LINE.fullmatch(line):
        raise UsageError(f"{name!r} is not a valid name of a key: use letters, digits, dots and dashes, 64 at most")
    if odd := [one for one in models if "," in one or not _LINE.fullmatch(f"{line} {one}")]:
        raise UsageError(f"{odd[0]!r} is not a valid name of a model: use letters, digits, dots, slashes and dashes")
    return key, " ".join(filter(None, (line, ",".join(models))))


def models_in(line: str) -> tuple[str, ...]:
    """Return the models in a line of the key file; () = all."""
    found = _LINE.fullmatch(line.strip())
    return tuple(filter(None, found[3].split(","))) if found and found[3] else ()


def seed(path: Path) -> bytes:
    """Return the secret seed of the engines' keys: drawn once, then the same for every controller.

    A missing or damaged file gets a new seed: running engines then refuse requests and are replaced.
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
    """Return the API key for the engine of `run`, behind the gateway's own keys.

    No other engine receives the key.
    """
    return hmac.digest(seed, run.encode(), "sha256").hex()


def load(path: Path) -> Keys:
    """Return the keys in a file.

    Raises UsageError for a malformed file, or a file writable by users other than the owner.
    """
    try:
        if path.stat().st_mode & 0o022:
            raise UsageError(f"{path}: other users can write to the file; run: chmod 600 {path}")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    hashes: dict[str, str] = {}
    models: dict[str, Collection[str]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or found[1] in hashes:
            form = "expected `name sha256` or `name sha256 model,model`"
            what = form if found is None else f"a second key called {found[1]}"
            raise UsageError(f"{path}: line {number}: {what}")
        hashes[found[1]] = found[2]
        if found[3]:
            models[found[1]] = frozenset(models_in(line))
    return Keys(hashes, models)
