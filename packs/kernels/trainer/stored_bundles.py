"""The bundles in a store: find a bundle that the user's key signed for exactly these facts, and publish a bundle.

    by-fingerprint/kernels/<name>-<number of files>/header.json and kernels.zip

The name is a keyed digest of the facts, so bundles of other users and of other machines have other names. No name of
the store points to the artifacts: `inv store.gc` removes bundles older than 14 days.
"""

import hashlib
import hmac
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packs.kernels.records.job_variables import KIND
from packs.kernels.trainer.bundle import HEADER_BYTES, Header, UnusableBundle, open_header, seal, unseal
from store.artifacts.artifacts import Store
from store.backends.backend import Backend, open_place
from store.manifest import BY_FINGERPRINT, StoreError

HEADER, ARCHIVE = "header.json", "kernels.zip"
FOLDER = f"{BY_FINGERPRINT}/{KIND}"
TRIED = 3  # bundles of a name that are tried, the bundle with most files first
# Forecast of a download: a rented machine with less than the rate is not accepted (SLIPWAY_ACCEPT_DOWNLOAD_MB_S).
START_S, BYTES_PER_S = 2.0, 2e6


@dataclass(frozen=True, kw_only=True)
class KernelStore:
    """The kernels for `facts` in the store `uri`, signed and verified with `key`. `say` receives the refusals."""

    uri: str
    key: bytes
    facts: Mapping[str, Any]
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        text = json.dumps(self.facts, sort_keys=True)
        return hmac.new(self.key, f"slipway kernels, name\n{text}".encode(), hashlib.sha256).hexdigest()[:32]

    def find(self, judged: Callable[[Header], None]) -> dict[str, bytes]:
        """Return the files of the usable bundle with most files; {} without a bundle, or if compiling is faster.

        judged: receives the verified header before the download of the archive. Raises StoreError, OSError.
        """
        place = open_place(self.uri)
        under = {path.rpartition("/")[0] for path in place.listing(FOLDER) if path.startswith(f"{FOLDER}/{self.name}-")}
        for folder in sorted(under, reverse=True)[:TRIED]:
            try:
                raw = read_at_most(place, f"{folder}/{HEADER}", HEADER_BYTES)
                header = open_header(raw, self.facts, self.key)
                if header.compile_s <= (expected_s := START_S + header.num_bytes / BYTES_PER_S):
                    self.say(f"not restored: the download may take {expected_s:.0f} s, longer than the compilation")
                    return {}
                judged(header)
                return unseal(header, read_at_most(place, f"{folder}/{ARCHIVE}", header.num_bytes))
            except (UnusableBundle, StoreError, OSError) as error:
                self.say(f"{folder} in {self.uri} is not used: {error}")
        return {}

    def publish(self, files: Mapping[str, bytes], compile_s: float, machine: str) -> int:
        """Publish the files as a bundle, and return the size. Raises UnusableBundle, StoreError."""
        header, archive = seal(files, self.facts, compile_s, self.key)
        fingerprint = f"{self.name}-{len(files):05}"
        about = {"shape": self.facts.get("shape"), "machine": machine, "compile_s": round(compile_s, 1)}
        with tempfile.TemporaryDirectory(prefix="slipway-kernels-") as folder:
            Path(folder, HEADER).write_bytes(header)
            Path(folder, ARCHIVE).write_bytes(archive)
            Store(self.uri).publish(folder, f"{FOLDER}/{fingerprint}", fingerprint, about)
        return len(archive)


def read_at_most(place: Backend, name: str, most: int) -> bytes:
    """Return the content of a file. Raises UnusableBundle above `most` bytes, FileNotFoundError and StoreError."""
    content = b""
    for piece in place.read_chunks(name):
        content += piece
        if len(content) > most:
            raise UnusableBundle(f"{name} has more than {most} bytes")
    return content
