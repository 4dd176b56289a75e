"""The SSH keys of rented pods: a pair per pod, made before the rental and found by the pod's token."""

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path

from infra.errors import SlipwayError
from infra.records import Address, Pod
from infra.transport.ssh import Ssh
from store import local_files

_TOKEN = re.compile(r"sw1-[a-z0-9]{8}-[a-z0-9]{16}")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,252})")
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


def is_token(text: str) -> bool:
    """Return whether the text is the token of a billable resource, made by any installation of Slipway."""
    return bool(_TOKEN.fullmatch(text))


@dataclass(frozen=True)
class PodKeys:
    """The private keys in `folder`, mode 0600 in 0700, and beside each key the host key seen first."""

    folder: Path

    @staticmethod
    def for_journal(journal: Path) -> "PodKeys":
        return PodKeys(journal.with_name(f"{journal.stem}-keys"))

    def ensure_public_key(self, token: str) -> str:
        """Return the public key `ssh-ed25519 ... token` of a pod; make the key pair at the first call."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.private_key_path(token)
        if not path.exists():
            new = Ed25519PrivateKey.generate().private_bytes(
                form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
            )
            local_files.replace(path, new, mode=0o600)
        private = form.load_ssh_private_key(path.read_bytes(), None)
        words = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)  # type: ignore[union-attr]
        return f"{words.decode()} {token}"

    def private_key_path(self, token: str) -> Path:
        """Return the path of the pod's private key. Raise SlipwayError for an invalid token."""
        if not is_token(token):
            raise SlipwayError(f"{token!r} is not a valid token of a pod")
        return self.folder / token

    def address(self, token: str, user: str, host: str, port: int) -> str:
        """Return the address of a pod as text. Raise SlipwayError for an invalid address from the vendor."""
        if not (_USER.fullmatch(user) and _HOST.fullmatch(host)):
            raise SlipwayError(f"{user[:64]!r} at {host[:64]!r} is not a valid address")
        home = "/root" if user == "root" else f"/home/{user}"
        folder = f"{home}/.slipway/pods/{token}"
        try:
            return str(Address(user=user, host=host, port=port, key=str(self.private_key_path(token)), folder=folder))
        except ValueError as error:
            raise SlipwayError(f"{error}; the vendor sent an invalid address") from None

    def transport_to(self, pod: Pod) -> Ssh:
        """Return the transport to one of our pods; the host key is pinned by token, since vendors reuse addresses.

        Raise SlipwayError for a pod without an address.
        """
        if not pod.address:
            raise SlipwayError(f"{pod.provider}: {pod.run or pod.pod_id} has no address yet")
        return _way(replace(Address.parse(pod.address), folder="/"), self.folder / f"{pod.token}.host")

    def delete(self, token: str) -> None:
        """Remove the keys of an ended pod."""
        path = self.private_key_path(token)
        for one in (path, path.with_name(f"{token}.host")):
            one.unlink(missing_ok=True)


@functools.lru_cache(maxsize=64)
def _way(address: Address, pins: Path) -> Ssh:
    """Return a cached connection for each pod."""
    return Ssh(address, pins)
