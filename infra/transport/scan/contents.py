"""Scan of a file's content for secrets and for the keys of this installation, piece by piece, in bounded memory.

The scan covers every byte: an overlap of the previous piece detects secrets across two pieces. Each pattern starts with
a literal text, or runs only after a literal probe was found, since a search for a literal is ten times as fast. The
keys are the secret settings from the environment and from `.env`; a file with the value of a key (12 letters or more),
in any form, is refused.
"""

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.checkout import ROOT
from infra.settings import HOOK, is_secret, of_packs, read_dotenv, table
from store.credentials import google_key
from store.masking import encodings

GOOGLE = "GOOGLE_CREDENTIALS"
ENV_FILES = (".env", "credentials/.env")
OVERLAP_BYTES = 4096  # longer than any match needed to recognize a secret
MOST_VALUE_BYTES = 1024  # searched prefix of a key's value: as certain as the whole value
LEAST_VALUE_LETTERS = 12  # shorter values may be ordinary words of the text
ENCODED_BYTES = 16 << 20  # search limit for encoded spellings of keys; larger files are data


@dataclass(frozen=True)
class OwnKey:
    """A key of this installation: the name of the variable, and the value."""

    name: str
    value: str

    def __repr__(self) -> str:
        return f"OwnKey({self.name})"


@dataclass(frozen=True)
class SecretForm:
    """A common form of secrets. `probe`: a text in every match; "" if the pattern itself starts with a literal."""

    kind: str
    probe: bytes
    pattern: re.Pattern[bytes]

    def candidates(self, window: bytes, begin: int) -> Iterator[re.Match[bytes]]:
        """Return the matches in a window, from `begin` on."""
        return iter(()) if self.probe and self.probe not in window else self.pattern.finditer(window, begin)


def _form(kind: str, probe: bytes, pattern: bytes) -> SecretForm:
    return SecretForm(kind, probe, re.compile(pattern))


def _token(kind: str, head: bytes, rest: bytes) -> SecretForm:
    """Return the form of a token without a word character before `head`; tested after the fast search for `head`."""
    return SecretForm(kind, b"", re.compile(head + rb"(?<![0-9A-Za-z_]" + head + rb")" + rest))


_HEADER = rb"-{4,5} ?BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)? ?-{4,5}"
_BREAK = rb"(?:\\+[nr]|[\s\"'\\+,]){1,40}"
# A header alone in source code is no key. A real key has the header alone on a line, or followed by key material on the
# same line.
_PEM = (
    rb"(?m)^[ \t>]*" + _HEADER + rb"[ \t]*\r?$"
    rb"|" + _HEADER + _BREAK + rb"(?:[A-Za-z0-9+/=]{16}|Proc-Type|DEK-Info|Comment:|Version:)"
    rb"|\"private_key\"\s*:\s*\"" + _HEADER
)
# PEM in base64, as in kubeconfig files: the header comes first, so only a few encodings of the header exist.
_PEM_KINDS = (b"", b"RSA ", b"EC ", b"DSA ", b"OPENSSH ", b"ENCRYPTED ")
_ENCODED_PEM = b"|".join(
    base64.b64encode(head := b"-----BEGIN " + kind + b"PRIVATE KEY")[: len(head) * 4 // 3 // 4 * 4].replace(
        b"+", b"\\+"
    )
    for kind in _PEM_KINDS
)
_AWS_SECRET = rb"[\"']?\s*[:=]\s*[\"']?(?![A-Za-z0-9/+]*EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])"
FORMS = (
    _form("a private key", b"PRIVATE KEY", _PEM),
    _form("a private key in base64", b"LS0tLS1CRUdJTi", _ENCODED_PEM),
    _form("a PuTTY private key", b"", rb"PuTTY-User-Key-File-\d+: \S"),
    _form("an age key", b"", rb"AGE-SECRET-KEY-(?:PQ-)?1[0-9A-Z]{20}"),
    _form("a WireGuard key", b"PrivateKey", rb"(?m)^[ \t]*PrivateKey[ \t]*=[ \t]*[A-Za-z0-9+/]{43}="),
    _form("a private JSON Web Key", b'"kty"', rb"\"d\"\s*:\s*\"[A-Za-z0-9_-]{40}"),
    _token("an AWS key", rb"AKIA", rb"[0-9A-Z]{16}\b"),
    _token("an AWS key", rb"ASIA", rb"[0-9A-Z]{16}\b"),
    _form("an AWS secret", b"", rb"aws_secret_access_key" + _AWS_SECRET),
    _form("an AWS secret", b"", rb"AWS_SECRET_ACCESS_KEY" + _AWS_SECRET),
    _token("a GitHub token", rb"gh[opsur]_", rb"[A-Za-z0-9]{36}"),
    _token("a GitHub token", rb"github_pat_", rb"[A-Za-z0-9_]{60}"),
    _token("a GitLab token", rb"glpat-", rb"[A-Za-z0-9_-]{20}"),
    _token("a Google key", rb"AIza", rb"[0-9A-Za-z_-]{35}"),
    _token("a Hugging Face token", rb"hf_", rb"[A-Za-z0-9]{30}"),
    _token("a RunPod key", rb"rpa_", rb"[A-Z0-9]{30}"),
    _token("a Slack token", rb"xox[abprs]-", rb"[0-9A-Za-z-]{20}"),
    _token("an API key", rb"sk-", rb"(?:proj-|svcacct-|ant-[a-z0-9]{1,16}-|or-v1-)?[A-Za-z0-9]{20}"),
    _form("an npm token", b"", rb"_authToken\s*=\s*[^\s$]{8}"),
)


@dataclass(frozen=True)
class SearchedTexts:
    """The texts to search for own keys: plain values, and other spellings."""

    plain: tuple[tuple[str, bytes], ...]
    encoded: tuple[tuple[str, bytes], ...]


def needles(keys: Sequence[OwnKey]) -> SearchedTexts:
    """Return the search texts for keys: the longest line of a multi-line value; short values are skipped."""
    plain, encoded = [], []
    for key in keys:
        value = max(key.value.split("\n"), key=len).strip()[:MOST_VALUE_BYTES]
        if len(value) < LEAST_VALUE_LETTERS:
            continue
        raw = value.encode(errors="surrogateescape")
        plain.append((key.name, raw))
        others = {*encodings(value), value.encode("utf-16-le", "surrogatepass")} - {raw}
        encoded += [(key.name, one) for one in sorted(others) if len(one) >= LEAST_VALUE_LETTERS]
    return SearchedTexts(tuple(plain), tuple(encoded))


class ContentScanner:
    """A scan of a file. `reason` describes the first finding; "" = no finding."""

    def __init__(self, own: SearchedTexts, lines: re.Pattern[bytes] | None = None) -> None:
        self.own, self.lines = own, lines
        self.reason = ""
        self.tail = b""
        self.num_seen = 0

    def feed(self, piece: bytes, is_last: bool = False) -> None:
        """Scan the next piece of the file."""
        window = self.tail + piece
        self.reason = self.reason or self._find_secret(window, is_last)
        self.tail = window[-OVERLAP_BYTES:]
        self.num_seen += len(piece)

    def _find_secret(self, window: bytes, is_last: bool) -> str:
        begin = 1 if self.num_seen > len(self.tail) else 0  # the preceding letter shows whether a word begins here
        for form in FORMS:
            if _is_whole(form.candidates(window, begin), window, is_last):
                return f"holds {form.kind}"
        if self.lines is not None and _is_whole(self.lines.finditer(window, begin), window, is_last):
            return "holds a password or a token"
        encoded = self.own.encoded if self.num_seen < ENCODED_BYTES else ()
        name = next((name for name, value in (*self.own.plain, *encoded) if value in window), "")
        return f"holds the value of {name}" if name else ""


def _is_whole(matches: Iterator[re.Match[bytes]], window: bytes, is_last: bool) -> bool:
    """Return whether a match exists; a match that the next piece could change does not count yet."""
    settled = len(window) - OVERLAP_BYTES
    return any(is_last or one.end() < len(window) or one.start() < settled for one in matches)


def keys_of_installation(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> tuple[OwnKey, ...]:
    """Return the keys, with each value once. Raises UsageError for an unreadable `.env`."""
    rows = (*(one.metadata for one in table()), *(row for _, row in of_packs()))
    ours = {row["variable"] for row in rows if row["secret"]}
    found = [(name, value) for name, value in environ.items() if name in ours or name.startswith(HOOK)]
    for file in ENV_FILES:
        found += [(name, value) for name, value in read_dotenv(root / file).items() if name in ours or is_secret(name)]
    keys = {part: name for name, value in found for part in _parts(name, value)}
    return tuple(OwnKey(name, value) for value, name in keys.items())


def _parts(name: str, value: str) -> Iterator[str]:
    """Yield the secret values of a variable: for a service account the private key, for a hook the address."""
    if name.startswith(HOOK):  # a hook has a kind and an address; only the address is secret
        yield from (word for word in value.split() if "://" in word)
        return
    if name != GOOGLE:
        yield value
        return
    try:
        yield str(json.loads(google_key(value))["private_key"])
    except (ValueError, KeyError, TypeError):
        return  # missing file or no service account: `store.backends.gs` reports the problem
