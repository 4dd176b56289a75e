"""A bundle: the files of a compile cache, as a header and an archive that only holders of a key can make.

    read_files(folder) -> seal(files, facts, key) -> header, archive
    header, archive -> open_header(key, facts) -> unseal -> files -> write_files(folder)

Loading a compiled kernel runs code: the compiler loads shared libraries and unpickles graphs without checks. So the
reader parses a header only after its MAC is verified, and an archive only after the digest in the header is verified.
The later checks of names and sizes limit the damage of a faulty writer.
"""

import hashlib
import hmac
import io
import json
import os
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from store import untrusted_input

SCHEMA = 1
HEADER_BYTES = 1 << 16
MOST_BYTES, MOST_UNPACKED_BYTES, MOST_FILES = 64 << 20, 256 << 20, 20_000
LONG_AGO = (1980, 1, 1, 0, 0, 0)
IN_USE, LOCKS = "in-use", "locks"  # parts of a cache folder that belong to the running process


class UnusableBundle(ValueError):
    """A bundle that must not be used; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """The signed facts about a bundle."""

    facts: Mapping[str, Any]
    """Machine, packages, code and shape for which the kernels were compiled."""
    compile_s: float
    """Seconds that the compilation of all kernels took."""
    num_bytes: int
    """Size of the archive."""
    sha256: str
    """Digest of the archive."""


def seal(files: Mapping[str, bytes], facts: Mapping[str, Any], compile_s: float, key: bytes) -> tuple[bytes, bytes]:
    """Return the header and the archive of a bundle. Raises UnusableBundle for an archive over MOST_BYTES."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, LONG_AGO), content, zipfile.ZIP_DEFLATED)
    packed = stream.getvalue()
    if len(packed) > MOST_BYTES:
        raise UnusableBundle(f"{len(packed)} bytes of kernels; at most {MOST_BYTES} are kept")
    digest = hashlib.sha256(packed).hexdigest()
    header = Header(facts=facts, compile_s=round(compile_s, 3), num_bytes=len(packed), sha256=digest)
    signed = _canonical({"schema": SCHEMA, **asdict(header)})
    return _mac(key, signed).encode() + b"\n" + signed, packed


def open_header(raw: bytes, facts: Mapping[str, Any], key: bytes) -> Header:
    """Return the verified header of a bundle for exactly these facts. Raises UnusableBundle."""
    mac, _, signed = raw.partition(b"\n")
    if len(raw) > HEADER_BYTES or not hmac.compare_digest(mac, _mac(key, signed).encode()):
        raise UnusableBundle("the signature is not of this user's key")
    try:
        said = untrusted_input.mapping(signed)
        if said.get("schema") != SCHEMA:
            raise UnusableBundle("the header has another schema")
        header = Header(
            facts=untrusted_input.typed(said, "facts", dict),
            compile_s=untrusted_input.typed(said, "compile_s", float),
            num_bytes=untrusted_input.typed(said, "num_bytes", int),
            sha256=untrusted_input.typed(said, "sha256", str),
        )
    except untrusted_input.UnusableDocument as error:
        raise UnusableBundle(str(error)) from None
    if _canonical(header.facts) != _canonical(facts):
        raise UnusableBundle("the kernels are for another machine, other packages or another shape")
    if not 0 <= header.num_bytes <= MOST_BYTES:
        raise UnusableBundle(f"{header.num_bytes} bytes; at most {MOST_BYTES} are read")
    return header


def unseal(header: Header, packed: bytes) -> dict[str, bytes]:
    """Return the files of the archive by relative path. Raises UnusableBundle."""
    if len(packed) != header.num_bytes or hashlib.sha256(packed).hexdigest() != header.sha256:
        raise UnusableBundle("the archive has another digest than the header")
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries, left = archive.infolist(), MOST_UNPACKED_BYTES
            if len(entries) > MOST_FILES:
                raise UnusableBundle(f"{len(entries)} files; at most {MOST_FILES} are unpacked")
            for entry in entries:
                if not is_of_cache(entry.filename) or entry.filename in found or entry.external_attr >> 16 & ~0o777:
                    raise UnusableBundle(f"{untrusted_input.printable_line(entry.filename)} is no file of a cache")
                with archive.open(entry) as file:
                    found[entry.filename] = file.read(left + 1)
                left -= len(found[entry.filename])
                if left < 0:
                    raise UnusableBundle(f"more than {MOST_UNPACKED_BYTES} bytes unpacked")
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise error if isinstance(error, UnusableBundle) else UnusableBundle(f"the archive: {error}") from None
    return found


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a compile cache by relative path, without locks, links and unfinished files.

    Raises UnusableBundle for more than MOST_UNPACKED_BYTES, and OSError.
    """
    found: dict[str, bytes] = {}
    left = MOST_UNPACKED_BYTES
    for here, _, names in os.walk(folder):
        for path in (Path(here, name) for name in names):
            relative = path.relative_to(folder).as_posix()
            if is_of_cache(relative) and stat.S_ISREG(path.lstat().st_mode):
                found[relative] = path.read_bytes()
                left -= len(found[relative])
                if left < 0 or len(found) > MOST_FILES:
                    raise UnusableBundle(
                        f"the compile cache has over {MOST_UNPACKED_BYTES} bytes or {MOST_FILES} files"
                    )
    return found


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Add the missing files to a compile cache, each whole or not at all. Raises OSError."""
    for path, content in files.items():
        target = folder / path
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{os.getpid()}.draft")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        os.replace(draft, target)


def is_of_cache(path: str) -> bool:
    """Return whether a relative path can be a finished file of a compile cache."""
    parts = path.split("/")
    is_hidden = any(part.startswith(".") for part in parts)
    return untrusted_input.is_inside(path) and not is_hidden and parts[0] not in (IN_USE, LOCKS)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _mac(key: bytes, signed: bytes) -> str:
    return hmac.new(key, b"slipway kernels, header\n" + signed, hashlib.sha256).hexdigest()
