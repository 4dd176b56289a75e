"""Private keys that only an ssh-agent can use: with a passphrase, of a security device, or given by the public key.

    address  ->  `key_of`: the agent's key, a key with a certificate elsewhere, or None for a key that paramiko reads

The public part of a key decides which key of the agent is used: no other key of the agent is offered to a machine.
"""

import base64
import contextlib
import shlex
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.records import Address

MAGIC = b"openssh-key-v1\0"
LOCKED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")  # PKCS 8, and PEM of older releases
KEY_BYTES = 64 << 10  # a private key is smaller


def key_of(address: Address) -> Any:
    """Return the `paramiko.PKey` for a key that only an agent can use, or that has a certificate in another place.

    Return None for other keys. Raises UsageError if the key is not in the ssh-agent, or does not fit the certificate.
    """
    path, certificate = Path(address.key), address.certificate
    if not (reason := why_agent(path)) and not certificate:
        return None
    from paramiko import PKey, SSHException, UnknownKeyType

    private = path.with_suffix("") if is_public(path) else path
    found: Any = None
    if reason:
        beside, blob = path.with_name(f"{private.name}-cert.pub"), public_blob(path)
        certificate = certificate or (str(beside) if beside.is_file() else "")
        found = next((one for one in _agent_keys(address.agent) if one.asbytes() == blob), None)
        if found is None:
            place = f"SSH_AUTH_SOCK={shlex.quote(address.agent)} " if address.agent else ""
            raise UsageError(
                f"the private key {path} {reason}, and the ssh-agent {address.agent or 'of this machine'} does not "
                f"hold the key; run: {place}ssh-add {shlex.quote(str(private))}"
            )
    try:
        found = PKey.from_path(path) if found is None else found
        if certificate:
            found.load_certificate(certificate)
    except (OSError, ValueError, SSHException, UnknownKeyType) as error:
        raise UsageError(f"the certificate {certificate} does not fit the key {path}: {error}") from None
    return found


def _agent_keys(place: str) -> Sequence[Any]:
    """Return the keys of the agent at a socket; "" = SSH_AUTH_SOCK."""
    from paramiko.agent import Agent, AgentSSH

    if not place:
        return Agent().get_keys()
    agent = AgentSSH()
    link = socket.socket(socket.AF_UNIX)
    with contextlib.suppress(OSError):  # no agent answers here: no keys
        link.connect(place)
        agent._connect(link)
    return agent.get_keys()


def why_agent(path: Path) -> str:
    """Return why only an agent can use a private key, as a phrase for messages; "" if the file is enough."""
    raw = _content(path)
    if is_public(path):
        return "is given by its public key"
    cipher, kind = _openssh(raw)[:2] if b"OPENSSH PRIVATE KEY" in raw else (b"", b"")
    if kind.startswith(b"sk-"):
        return "belongs to a security device"
    is_locked = cipher not in (b"", b"none") or any(one in raw for one in LOCKED)
    return "has a passphrase" if is_locked else ""


def is_public(path: Path) -> bool:
    """Return whether a file holds a public key, as ssh takes it for a key that only the agent holds."""
    return _content(path).startswith((b"ssh-", b"ecdsa-sha2-", b"sk-ssh-", b"sk-ecdsa-"))


def public_blob(path: Path) -> bytes:
    """Return the public key in the wire format, from the key itself or from the .pub file beside a private key."""
    raw = _content(path)
    if b"OPENSSH PRIVATE KEY" in raw and (blob := _openssh(raw)[2]):
        return blob
    words = (raw if is_public(path) else _content(path.with_name(f"{path.name}.pub"))).split()
    try:
        return base64.b64decode(words[1]) if len(words) > 1 else b""
    except ValueError:
        return b""


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(KEY_BYTES)
    except OSError:  # `check_key` reports a missing file
        return b""


def _openssh(raw: bytes) -> tuple[bytes, bytes, bytes]:
    """Return cipher, type and public key of a file in the format of OpenSSH (PROTOCOL.key); b"" for a damaged file."""
    lines = [line for line in raw.splitlines() if line and not line.startswith(b"-----")]
    try:
        body = base64.b64decode(b"".join(lines))
        rest = body.removeprefix(MAGIC)
        cipher, rest = _string(rest)
        for _ in range(2):  # key derivation and its options
            _, rest = _string(rest)
        blob, _ = _string(rest[4:])
        return cipher, _string(blob)[0], blob
    except (ValueError, struct.error):
        return b"", b"", b""


def _string(raw: bytes) -> tuple[bytes, bytes]:
    """Return a string of the wire format, and the rest."""
    (length,) = struct.unpack(">I", raw[:4])
    return raw[4 : 4 + length], raw[4 + length :]
