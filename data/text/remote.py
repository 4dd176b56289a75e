"""Remote files, read by byte ranges with retries.

HTTP uses the Hugging Face client, S3 and Google buckets use the backends of the artifact store, and other URLs use
fsspec. An interrupted range resumes at the next missing byte. Responses 429 and 5xx are retried after Retry-After
seconds, otherwise with growing backoff, until PATIENCE_S seconds pass without a byte. For a host that never responded
to this process, the limit is STRANGER_S, because the network or the host may not exist.
"""

import io
import os
import random
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from data.config import form_of
from data.errors import DataError, InputError

PATIENCE_S = 90.0
STRANGER_S = 6.0
ANSWER_S, STRANGER_ANSWER_S = 30.0, 8.0
LONGEST_PAUSE_S = 60.0
STRANGER = (STRANGER_ANSWER_S, 2 * STRANGER_ANSWER_S, 4)  # patience with a bucket that never responded
BLOCK = 8 << 20
BUCKETS = ("s3://", "gs://")
AGAIN = {408, 429, 500, 502, 503, 504}
_answered: set[str] = set()
"""Hosts that responded to this process."""


def hub() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def token_headers() -> dict[str, str]:
    """Return the authorization header for the hub, from HUGGINGFACEHUB_API_TOKEN or HF_TOKEN, or {} without a token."""
    token = os.environ.get("HUGGINGFACEHUB_API_TOKEN") or os.environ.get("HF_TOKEN")
    return {"authorization": f"Bearer {token}"} if token else {}


def open_remote(uri: str) -> BinaryIO:
    """Return a seekable file. Raises InputError if the file does not exist, DataError if the host is unreachable."""
    if uri.startswith(("http://", "https://")):
        return RemoteFile(uri, token_headers() if uri.startswith(hub() + "/") else {})  # type: ignore[return-value]
    if uri.startswith(BUCKETS):
        return BucketFile(uri)  # type: ignore[return-value]
    import fsspec

    try:
        return fsspec.open(uri, "rb").open()
    except (ImportError, ValueError) as error:  # missing package for the protocol, or unknown protocol
        raise InputError(f"source {uri}: {error}") from None
    except FileNotFoundError:
        raise InputError(f"source {uri}: no such file") from None


def list_remote(uri: str) -> list[str]:
    """Return the URIs of `uri`: a single file, or all files of a folder or glob in a bucket or fsspec store.

    Raises InputError for an unknown protocol or bucket, DataError if the store is unreachable.
    """
    if uri.startswith(("http://", "https://")):
        return [uri]
    if uri.startswith(BUCKETS):
        return _list_bucket(uri)
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(uri)
        found = system.glob(path) if is_pattern(path) else system.find(path)
        return [system.unstrip_protocol(one) for one in sorted(found)]
    except (ImportError, ValueError) as error:
        raise InputError(f"source {uri}: {error}") from None
    except OSError as error:
        raise DataError(f"source {uri}: {error}") from None


def is_pattern(path: str) -> bool:
    return any(one in path for one in "*?[")


def _list_bucket(uri: str) -> list[str]:
    from fsspec.utils import glob_translate

    bucket, path = _parts(uri)
    if form_of(path)[0] and not is_pattern(path):
        return [uri]
    folder = re.split(r"[*?[]", path)[0].rpartition("/")[0] if is_pattern(path) else path.rstrip("/")
    with convert_errors(uri):
        names = sorted(_bucket(bucket, STRANGER).listing(folder))
    wanted = glob_translate(path) if is_pattern(path) else ".*"
    return [f"{bucket}/{name}" for name in names if re.fullmatch(wanted, name)]


def _parts(uri: str) -> tuple[str, str]:
    """Return the address of the bucket, and the object name."""
    kind, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    return f"{kind}://{bucket}", path


def _bucket(address: str, patience: Any) -> Any:
    from store.backends.backend import open_place
    from store.patience import Patience as Waiting

    found = open_place(address)
    found.patience = Waiting(*patience)  # type: ignore[attr-defined]
    return found


@contextmanager
def convert_errors(uri: str) -> Iterator[None]:
    """Convert errors of the artifact store to InputError and DataError."""
    from store.manifest import NoStore, StoreError

    try:
        yield
    except FileNotFoundError:
        raise InputError(f"source {uri}: no such file") from None
    except NoStore as error:
        raise InputError(f"source {error}") from None
    except StoreError as error:
        raise DataError(f"source {error}") from None


class Ranges(io.RawIOBase):
    """Base class of a seekable file with a byte range request per read; subclasses set `size` and define `_fetch`."""

    size: int

    def __init__(self) -> None:
        self._at = 0

    @abstractmethod
    def _fetch(self, start: int, stop: int, into: bytearray) -> int: ...

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


class BucketFile(Ranges):
    """An object of a bucket, pinned to the version at opening."""

    def __init__(self, uri: str):
        super().__init__()
        self.uri = uri
        bucket, self.name = _parts(uri)
        with convert_errors(uri):
            entry = _bucket(bucket, STRANGER).entry(self.name)
        self.size, self.version = entry.size, entry.version
        self.place = _bucket(bucket, (ANSWER_S, PATIENCE_S, 9))

    def _fetch(self, start: int, stop: int, into: bytearray) -> int:
        with convert_errors(self.uri):
            while start < stop:
                piece = self.place.get(self.name, start, min(stop, start + BLOCK), version=self.version)
                if not piece:
                    raise DataError(f"source {self.uri}: shorter than before")
                into += piece
                start += len(piece)
        return self.size


class RemoteFile(Ranges):
    """A file behind HTTP. `headers` are sent only to the original host, not to redirect targets."""

    def __init__(self, url: str, headers: Mapping[str, str]):
        super().__init__()
        self.url, self.headers = url, dict(headers)
        # Final URL of the last response; most hubs redirect to a separate storage host.
        self._place = url
        self.size = self._fetch(0, 1, bytearray())

    def _fetch(self, start: int, stop: int, into: bytearray) -> int:
        """Append bytes [start, stop) of the file to `into`; return the size of the file."""

        def ask() -> int:
            before = len(into)
            try:
                return self._ask(start + before, stop, into)
            finally:
                if len(into) > before:
                    patience.renew()

        patience = ReadPatience(self.url)
        return patience.retry(ask)

    def _ask(self, start: int, stop: int, into: bytearray) -> int:
        from huggingface_hub import get_session

        # Reset the URL first, so that a failing redirect target is used only once.
        place, self._place = self._place, self.url
        headers = {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
        headers |= self.headers if place == self.url else {}
        timeout_s = ANSWER_S if host(place) in _answered else STRANGER_ANSWER_S
        with get_session().stream("GET", place, headers=headers, timeout=timeout_s, follow_redirects=True) as answer:
            _answered.update((host(place), host(str(answer.url))))
            if answer.status_code == 416:  # an empty file has no first byte
                return 0
            if place != self.url and answer.status_code in (401, 403, 404, 410):
                raise RetryableRead(f"{answer.status_code} from the redirected address")
            check(answer, self.url)
            skip = 0 if answer.status_code == 206 else start
            for block in answer.iter_raw():
                rest = block[skip:]
                skip = max(0, skip - len(block))
                into += rest[: stop - start]
                start += len(rest[: stop - start])
                if start >= stop and answer.status_code != 206:
                    break  # a server without range support sends the whole file
            if start < stop and answer.status_code == 206:
                raise RetryableRead("it broke off")
            self._place = str(answer.url)
            total = answer.headers.get("content-range", "").rpartition("/")[2]
            return int(total or answer.headers.get("content-length", "0"))


def host(url: str) -> str:
    return urlsplit(url).netloc


class RetryableRead(Exception):
    """A retryable failure; `wait_s` is the pause requested by the server, or None."""

    def __init__(self, seen: str, wait_s: float | None = None):
        super().__init__(seen)
        self.wait_s = wait_s


def check(answer: Any, url: str) -> None:
    """Raise RetryableRead, InputError or DataError for an error response."""
    code = answer.status_code
    if code in AGAIN:
        from store.patience import asked_wait_s

        raise RetryableRead(f"it answers {code}", asked_wait_s(answer.headers))
    if code in (401, 403):
        raise DataError(
            f"{url}: the server answers {code}; set HUGGINGFACEHUB_API_TOKEN or HF_TOKEN to a token with read access"
        )
    if code in (404, 410):
        raise InputError(f"{url}: the server answers {code}: not found")
    if code >= 400:
        raise DataError(f"{url}: it answers {code}")


class ReadPatience:
    """The deadline of a request, including retries."""

    def __init__(self, url: str, patience_s: float = PATIENCE_S, stranger_s: float | None = None):
        self.url, self.patience_s, self.stranger_s, self.began = url, patience_s, stranger_s, time.monotonic()
        self.renew()

    def renew(self) -> None:
        self.deadline, self.pause_s = time.monotonic() + self.patience_s, 0.5

    def retry(self, what: Callable[[], int]) -> int:
        """Return the result of `what`, retried until success. Raises DataError at the deadline."""
        import httpx2

        while True:
            patience_s, until = self.patience_s, self.deadline
            try:
                return what()
            except RetryableRead as error:
                seen, wait_s = str(error), error.wait_s
            except httpx2.TransportError as error:
                seen, wait_s = str(error) or type(error).__name__, None
                if host(self.url) not in _answered:
                    patience_s = min(patience_s, STRANGER_S if self.stranger_s is None else self.stranger_s)
                    until = min(until, self.began + patience_s)
            # Duplicates the rule of `store.backoff`: with an import, each edit there would change the code fingerprint
            # of all text.
            if wait_s is None:
                wait_s, self.pause_s = self.pause_s * random.uniform(0.5, 1.0), min(2 * self.pause_s, 16.0)
            wait_s = min(wait_s, LONGEST_PAUSE_S)
            if time.monotonic() + wait_s > until:
                raise DataError(f"{self.url}: {seen}; given up after {patience_s:.0f} s")
            time.sleep(wait_s)
