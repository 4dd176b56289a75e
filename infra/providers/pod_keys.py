"""The SSH keys of rented pods: one pair per pod, made before it is rented, found again by its token."""

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
    """Return whether it is the key of one billable thing that some installation of ours has made."""
    return bool(_TOKEN.fullmatch(text))


@dataclass(frozen=True)
class PodKeys:
    """The private keys in `folder`, mode 0600 in 0700, and beside them the host keys that were seen first."""

    folder: Path

    @staticmethod
    def beside(journal: Path) -> "PodKeys":
        return PodKeys(journal.with_name(f"{journal.stem}-keys"))

    def public(self, token: str) -> str:
        """Return `ssh-ed25519 ... token`, of the pair that belongs to `token`, which is made at the first call."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.private(token)
        if not path.exists():
            new = Ed25519PrivateKey.generate().private_bytes(
                form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
            )
            local_files.replace(path, new, mode=0o600)
        private = form.load_ssh_private_key(path.read_bytes(), None)
        words = private.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)  # type: ignore[union-attr]
        return f"{words.decode()} {token}"

    def private(self, token: str) -> Path:
        """Return the path of that pod's private key."""
        if not is_token(token):
            raise SlipwayError(f"{token!r} is not the token of one of our pods")
        return self.folder / token

    def address(self, token: str, user: str, host: str, port: int) -> str:
        """Return the address of a pod, as text. SlipwayError: what the vendor says of it is none."""
        if not (_USER.fullmatch(user) and _HOST.fullmatch(host)):
            raise SlipwayError(f"{user[:64]!r} at {host[:64]!r} is not an address that can be trusted")
        home = "/root" if user == "root" else f"/home/{user}"
        folder = f"{home}/.slipway/pods/{token}"
        try:
            return str(Address(user=user, host=host, port=port, key=str(self.private(token)), folder=folder))
        except ValueError as error:
            raise SlipwayError(f"{error}; the address cannot be trusted") from None

    def reach(self, pod: Pod) -> Ssh:
        """Return the transport to a pod of ours; its host key is pinned by its token, since addresses are reused."""
        if not pod.address:
            raise SlipwayError(f"{pod.provider}: {pod.run or pod.pod_id} has no address yet")
        return _way(replace(Address.parse(pod.address), folder="/"), self.folder / f"{pod.token}.host")

    def forget(self, token: str) -> None:
        """Remove the keys of a pod that is gone."""
        path = self.private(token)
        for one in (path, path.with_name(f"{token}.host")):
            one.unlink(missing_ok=True)


@functools.lru_cache(maxsize=64)
def _way(address: Address, pins: Path) -> Ssh:
    """Return one connection for each pod."""
    return Ssh(address, pins)
