"""The certificate by which a gateway speaks TLS: checked, read again when it was renewed, and known to clients of ours.

In: the files of a user. Out: contexts of Python's ssl. Raises UsageError, with the file and what to do about it.
"""

import os
import re
import shlex
import ssl
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

_FIRST = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.S)
Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Tls:
    """Files in PEM, on the machine where the gateway runs. The names are those of the service file."""

    keyfile: str
    """The private key, without a password; nobody but its owner may read it."""
    certfile: str
    """The certificate, then those between it and its root."""


class Certificate:
    """A certificate, and the context in which a gateway uses it now."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self._stamp = stamp_of(tls)
        self.context = server_context(tls)

    def renew(self) -> bool:
        """Read the files again if they have changed, and tell whether they had; until they fit, nothing changes."""
        stamp = stamp_of(self.tls)
        if stamp == self._stamp:
            return False
        self.context = server_context(self.tls)
        self._stamp = stamp
        return True


def stamp_of(tls: Tls) -> Stamp:
    """Return a stamp that changes when these files do."""
    stats = [_stat(path) for path in (tls.keyfile, tls.certfile)]
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return the context of a server: TLS 1.2 or newer."""
    mode = _stat(tls.keyfile).st_mode & 0o777
    quoted = shlex.quote(tls.keyfile)
    if mode & 0o077:
        raise UsageError(f"service.tls: keyfile {tls.keyfile} has mode {mode:o}, others can read it; "
                         f"run: chmod 600 {quoted}")  # fmt: skip
    if "ENCRYPTED" in _text(tls.keyfile):
        raise UsageError(
            f"service.tls: keyfile {tls.keyfile} has a password, which a gateway cannot ask for; write it "
            f"without one, to a file of mode 600: openssl pkey -in {quoted} -out FILE"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _text(tls.certfile)
    try:
        context.load_cert_chain(tls.certfile, tls.keyfile)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"service.tls: keyfile {tls.keyfile} is not the key of {tls.certfile}") from None
        raise UsageError(f"service.tls: {tls.certfile} and {tls.keyfile} are not a certificate and key in PEM: "
                         f"{error.reason or error}") from None  # fmt: skip
    return context


def client_context(certfile: str) -> ssl.SSLContext:
    """Return the context of a client that knows the server by this very certificate.

    So it needs neither its root nor a name that the certificate has: 127.0.0.1 is seldom one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=leaf(certfile))
    except ssl.SSLError as error:
        raise UsageError(f"service.tls: certfile {certfile} cannot be read: {error.reason or error}") from None
    return context


def ends_at(certfile: str) -> float:
    """Return the end of the server's own certificate, in seconds since 1970 UTC."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(leaf(certfile).encode()).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise UsageError(f"service.tls: certfile {certfile} cannot be read: {error}") from None


def leaf(certfile: str) -> str:
    """Return the first certificate of a file, which is the server's own."""
    found = _FIRST.search(_text(certfile))
    if found is None:
        raise UsageError(f"service.tls: certfile {certfile} holds no certificate in PEM")
    return found[0]


def _stat(path: str) -> os.stat_result:
    try:
        return Path(path).stat()
    except OSError as error:
        raise UsageError(f"service.tls: {path}: {error.strerror}") from None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise UsageError(f"service.tls: {path}: {error.strerror}") from None
