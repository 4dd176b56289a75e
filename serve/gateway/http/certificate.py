"""TLS certificate of a gateway: validation, reload after a renewal, and contexts for our own clients.

The user's PEM files become contexts of Python's ssl. Errors raise UsageError with the file and the remedy.
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
    """PEM files on the machine of the gateway. Fields are named as in the service file."""

    keyfile: str
    """Private key without a password, readable by the owner only."""
    certfile: str
    """Server certificate, followed by the intermediate certificates."""


class Certificate:
    """A certificate with the current server context."""

    def __init__(self, tls: Tls) -> None:
        self.tls = tls
        self._stamp = stamp_of(tls)
        self.context = server_context(tls)

    def renew(self) -> bool:
        """Reload changed files; return True if files had changed. Raises UsageError and keeps the old context."""
        stamp = stamp_of(self.tls)
        if stamp == self._stamp:
            return False
        self.context = server_context(self.tls)
        self._stamp = stamp
        return True


def stamp_of(tls: Tls) -> Stamp:
    """Return a stamp of inode, size and mtime, which changes with the files. Raises UsageError for a missing file."""
    stats = [_stat(path) for path in (tls.keyfile, tls.certfile)]
    return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return a server context for TLS 1.2 or newer. Raises UsageError for unusable files."""
    mode = _stat(tls.keyfile).st_mode & 0o777
    quoted = shlex.quote(tls.keyfile)
    if mode & 0o077:
        raise UsageError(
            f"service.tls: other users can read keyfile {tls.keyfile} (mode {mode:o}); run: chmod 600 {quoted}"
        )
    if "ENCRYPTED" in _text(tls.keyfile):
        raise UsageError(
            f"service.tls: keyfile {tls.keyfile} has a password, and the gateway cannot ask for the password. Write "
            f"the key without a password to a file of mode 600: openssl pkey -in {quoted} -out FILE"
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
        raise UsageError(
            f"service.tls: {tls.certfile} and {tls.keyfile} are not a certificate and key in PEM: "
            f"{error.reason or error}"
        ) from None
    return context


def client_context(certfile: str) -> ssl.SSLContext:
    """Return a client context that accepts exactly this certificate.

    The context needs neither the root certificate nor a matching host name: few certificates name 127.0.0.1.
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
    """Return the expiry of the server's own certificate in seconds since 1970 UTC. Raises UsageError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(leaf(certfile).encode()).not_valid_after_utc.timestamp()
    except ValueError as error:
        raise UsageError(f"service.tls: certfile {certfile} cannot be read: {error}") from None


def leaf(certfile: str) -> str:
    """Return the first certificate of a file, the server's own. Raises UsageError."""
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
