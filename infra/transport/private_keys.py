"""The keys of an address: private keys in files, and keys that only an ssh-agent can use.

The latter have a passphrase, belong to a security device, or are given by the public key.

    address  ->  `login_keys`: the usable keys, each with its certificates; keys in files precede keys of an agent

The public part of a key decides which key of the agent is used: no other key of the agent is offered to a machine. An
agent is asked only when its first key is due, since an agent may ask a person, or not answer.
"""

import base64
import contextlib
import functools
import io
import os
import shlex
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.records import Address
from infra.transport.protocol import OPEN_S

MAGIC = b"openssh-key-v1\0"
LOCKED = (b"BEGIN ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")  # PKCS 8, and PEM of older releases
KEY_BYTES = 64 << 10  # a private key is smaller
AGENT_S = OPEN_S  # seconds for each answer of an agent


@dataclass(frozen=True)
class LoginKey:
    path: Path
    key: Any  # a paramiko.PKey
    certificates: tuple[Path, ...] = ()
    is_of_agent: bool = False


def keys_of(address: Address) -> list[Path]:
    """Return the files of all keys of an address, in the order in which the keys are offered."""
    return [Path(one) for one in (address.key, *address.more_keys) if one]


def login_keys(address: Address, left_out: list[str]) -> Iterator[LoginKey]:
    """Yield the usable keys of an address; append the reasons against its other keys to `left_out`."""
    held = functools.cache(lambda: _agent_keys(address.agent))
    for path in sorted(keys_of(address), key=lambda path: bool(why_agent(path))):
        try:
            yield _login_key(path, address, held)
        except UsageError as error:
            left_out.append(str(error))


def _login_key(path: Path, address: Address, held: "Callable[[], tuple[Sequence[Any], str]]") -> LoginKey:
    if why := why_ignored(path):
        raise UsageError(why)
    reason = why_agent(path)
    key = _agent_key(path, reason, address.agent, *held()) if reason else _private_key(path)
    return LoginKey(path, key, certificates_of(path, address), bool(reason))


def why_ignored(path: Path) -> str:
    """Return why ssh ignores the file of a key, with the next command; "" for a file that ssh reads."""
    if not os.path.isfile(path):
        return f"the private key {path} is missing"
    if not os.access(path, os.R_OK):
        return f"key {path} cannot be read by this user; run: ls -l {shlex.quote(str(path))}"
    seen = path.stat()
    if seen.st_uid != os.getuid() or not seen.st_mode & 0o077 or is_public(path):
        return ""
    mode = seen.st_mode & 0o777
    return f"key {path} has mode {mode:o}, so other users can read the key; run: chmod 600 {shlex.quote(str(path))}"


def certificates_of(path: Path, address: Address) -> tuple[Path, ...]:
    """Return the certificates of a key: named by the address, or beside the key. Like ssh, leave out all others."""
    beside = path.with_name(f"{path.stem if is_public(path) else path.name}-cert.pub")
    named = [one for one in dict.fromkeys((*map(Path, address.certificates), beside)) if os.path.isfile(one)]
    blob = public_blob(path) if named else b""
    return tuple(one for one in named if _certifies(one, blob))


def _certifies(certificate: Path, blob: bytes) -> bool:
    """Return whether a certificate is of the public key `blob` (PROTOCOL.certkeys: type, nonce, public key, ...)."""
    try:
        kind, rest = _string(base64.b64decode(_content(certificate).split()[1]))
        _, rest = _string(rest)
        key_kind, key = _string(blob)
    except (ValueError, IndexError, struct.error):
        return False
    return bool(key) and kind.startswith(key_kind.partition(b"@")[0] + b"-cert-") and rest.startswith(key)


def _agent_key(path: Path, reason: str, agent: str, held: Sequence[Any], problem: str) -> Any:
    """Return the agent's key for a file. Raises UsageError if the agent does not hold the key, or has a problem."""
    private, blob = path.with_suffix("") if is_public(path) else path, public_blob(path)
    if not blob:
        word = shlex.quote(str(path))
        raise UsageError(
            f"the private key {path} {reason}, and the ssh-agent finds the key by its public part, which is missing; "
            f"run: ssh-keygen -y -f {word} > {word}.pub"
        )
    found = next((one for one in held if one.blob == blob), None)
    if problem:
        raise UsageError(
            f"the private key {path} {reason}, and the ssh-agent {agent or 'of this machine'} gives no answer: "
            f"{problem}; restart the agent, then run: ssh-add {shlex.quote(str(private))}"
        )
    if found is None:
        place = f"SSH_AUTH_SOCK={shlex.quote(agent)} " if agent else ""
        raise UsageError(
            f"the private key {path} {reason}, and the ssh-agent {agent or 'of this machine'} does not "
            f"hold the key; run: {place}ssh-add {shlex.quote(str(private))}"
        )
    return found


def _private_key(path: Path) -> Any:
    """Return the paramiko.PKey of a file in any format that ssh reads. Raises UsageError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from paramiko import ECDSAKey, Ed25519Key, RSAKey, SSHException

    raw = _content(path)
    try:
        try:
            found = form.load_ssh_private_key(raw, None)
        except ValueError:
            found = form.load_pem_private_key(raw, None)  # type: ignore[assignment]
        kind = found.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH).split()[0]
        if kind == b"ssh-rsa":
            return RSAKey(key=found)
        text = found.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()).decode()
        return (Ed25519Key if kind == b"ssh-ed25519" else ECDSAKey).from_private_key(io.StringIO(text))
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm, SSHException):
        raise UsageError(
            f"the private key {path} is not in a format that can be used (OpenSSH, PEM or PKCS 8, of the type RSA, "
            f"ECDSA or Ed25519); run: ssh-keygen -y -f {shlex.quote(str(path))}"
        ) from None


def _agent_keys(place: str) -> tuple[Sequence[Any], str]:
    """Return the keys of the agent at a socket, and the problem of an agent that does not answer; "" = SSH_AUTH_SOCK.

    Each answer, also a later signature, has a time limit.
    """
    from paramiko import SSHException
    from paramiko.agent import AgentSSH

    place, agent, link = place or os.environ.get("SSH_AUTH_SOCK", ""), AgentSSH(), socket.socket(socket.AF_UNIX)
    link.settimeout(AGENT_S)
    try:
        link.connect(place)
    except OSError:  # no agent: no keys
        link.close()
        return (), ""
    try:
        agent._connect(link)
    except (OSError, ValueError, SSHException) as error:
        link.close()
        return (), str(error)
    return agent.get_keys(), ""


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
    if not why_agent(path):
        with contextlib.suppress(UsageError):
            return bytes(_private_key(path).asbytes())
    words = (raw if is_public(path) else _content(path.with_name(f"{path.name}.pub"))).split()
    try:
        return base64.b64decode(words[1]) if len(words) > 1 else b""
    except ValueError:
        return b""


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(KEY_BYTES)
    except OSError:  # `why_ignored` reports a missing file
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
