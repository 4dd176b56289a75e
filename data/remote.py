"""Files that lie elsewhere, read by byte ranges: HTTP by the Hugging Face client, other stores by fsspec.

A range that breaks off goes on at the byte that it reached. An answer of 429 or 5xx is asked again after what
Retry-After says, else with growing pauses, and given up after PATIENCE_S without a byte. An address where nobody has
ever answered this process is given up after STRANGER_S: there may be no network at all, or no such machine.
"""

import io
import os
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from data.errors import DataError, InputError

PATIENCE_S = 90.0
STRANGER_S = 6.0
ANSWER_S, STRANGER_ANSWER_S = 30.0, 8.0
LONGEST_PAUSE_S = 60.0
BLOCK = 8 << 20
AGAIN = {408, 429, 500, 502, 503, 504}
_answered: set[str] = set()
"""Machines, by their part of an address."""


def hub() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token_headers() -> dict[str, str]:
    """How the hub knows us: HUGGINGFACEHUB_API_TOKEN, else HF_TOKEN, else nothing."""
    token = os.environ.get("HUGGINGFACEHUB_API_TOKEN") or os.environ.get("HF_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


def open_remote(uri: str) -> BinaryIO:
    """A seekable file. Raises InputError when it is not there, DataError when it cannot be reached."""
    if uri.startswith(("http://", "https://")):
        return RemoteFile(uri, token_headers() if uri.startswith(hub() + "/") else {})  # type: ignore[return-value]
    import fsspec

    try:
        return fsspec.open(uri, "rb").open()
    except (ImportError, ValueError) as error:  # the package for this store is not installed; no such protocol
        raise InputError(f"source {uri}: {error}") from None
    except FileNotFoundError:
        raise InputError(f"source {uri}: no such file") from None


class RemoteFile(io.RawIOBase):
    """One file behind HTTP; every read is one range. `headers` go to its own address, not to where that leads."""

    def __init__(self, url: str, headers: Mapping[str, str]):
        self.url, self.headers = url, dict(headers)
        self._place = url  # where the last answer came from: most hubs lead to a store beside them
        self._at = 0
        self.size = self._fetch(0, 1, bytearray())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self.size - self._at))
        if not wanted:
            return 0
        got = bytearray()
        self._fetch(self._at, self._at + wanted, got)
        memoryview(buffer).cast("B")[:wanted] = got
        self._at += wanted
        return wanted

    def _fetch(self, start: int, stop: int, into: bytearray) -> int:
        """Put bytes [start, stop) of the file into `into`; the size of the file."""

        def ask() -> int:
            before = len(into)
            try:
                return self._ask(start + before, stop, into)
            finally:
                if len(into) > before:
                    patience.renew()

        patience = Patience(self.url)
        return patience.ask(ask)

    def _ask(self, start: int, stop: int, into: bytearray) -> int:
        from huggingface_hub import get_session

        place, self._place = self._place, self.url  # an address that leads nowhere is not tried twice
        headers = {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        headers |= self.headers if place == self.url else {}
        timeout_s = ANSWER_S if host(place) in _answered else STRANGER_ANSWER_S
        with get_session().stream("GET", place, headers=headers, timeout=timeout_s, follow_redirects=True) as answer:
            _answered.update((host(place), host(str(answer.url))))
            if answer.status_code == 416:  # an empty file has no first byte
                return 0
            if place != self.url and answer.status_code in (401, 403, 404, 410):
                raise Again(f"{answer.status_code} from where it led to")
            check(answer, self.url)
            skip = 0 if answer.status_code == 206 else start
            for block in answer.iter_raw():
                rest = block[skip:]
                skip = max(0, skip - len(block))
                into += rest[: stop - start]
                start += len(rest[: stop - start])
                if start >= stop and answer.status_code != 206:
                    break  # a server without ranges sends all of it
            if start < stop and answer.status_code == 206:
                raise Again("it broke off")
            self._place = str(answer.url)
            total = answer.headers.get("content-range", "").rpartition("/")[2]
            return int(total or answer.headers.get("content-length", "0"))


def host(url: str) -> str:
    return urlsplit(url).netloc


class Again(Exception):
    """What may go better the next time; after `wait_s` where the other side said so."""

    def __init__(self, seen: str, wait_s: float | None = None):
        super().__init__(seen)
        self.wait_s = wait_s


def check(answer: Any, url: str) -> None:
    """Raises Again, InputError or DataError for an answer that is none."""
    code = answer.status_code
    if code in AGAIN:
        said = answer.headers.get("retry-after", "")
        raise Again(f"it answers {code}", float(said) if said.isdigit() else None)
    if code in (401, 403):
        raise DataError(
            f"{url}: it answers {code}; set HUGGINGFACEHUB_API_TOKEN or HF_TOKEN to a token that may read it"
        )
    if code in (404, 410):
        raise InputError(f"{url}: it answers {code}; there is no such thing")
    if code >= 400:
        raise DataError(f"{url}: it answers {code}")


class Patience:
    """How long one thing is asked for again and again."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S):
        self.url, self.patience_s, self.began = url, patience_s, time.monotonic()
        self.renew()

    def renew(self) -> None:
        self.deadline, self.pause_s = time.monotonic() + self.patience_s, 0.5

    def ask(self, what: Callable[[], int]) -> int:
        """The answer of `what`, asked until it comes. Raises DataError when patience ends."""
        import httpx2

        while True:
            patience_s, until = self.patience_s, self.deadline
            try:
                return what()
            except Again as error:
                seen, wait_s = str(error), error.wait_s
            except httpx2.TransportError as error:
                seen, wait_s = str(error) or type(error).__name__, None
                if host(self.url) not in _answered:
                    patience_s = min(patience_s, STRANGER_S)
                    until = min(until, self.began + patience_s)
            if wait_s is None:
                wait_s, self.pause_s = self.pause_s * random.uniform(0.5, 1.0), min(2 * self.pause_s, 16.0)
            wait_s = min(wait_s, LONGEST_PAUSE_S)
            if time.monotonic() + wait_s > until:
                raise DataError(f"{self.url}: {seen}; given up after {patience_s:.0f} s")
            time.sleep(wait_s)
