"""The backend of a Google Cloud Storage bucket or a folder in a bucket, `gs://bucket/folder`, through the JSON API.

Credentials come from GOOGLE_CREDENTIALS (the content or path of a key file), else from the defaults of Google's tools
(GOOGLE_APPLICATION_CREDENTIALS, the gcloud file, the service account of the machine). STORAGE_EMULATOR_HOST selects a
different server, used anonymously unless GOOGLE_CREDENTIALS is set. Large objects use one resumable upload, which
continues after an interruption; a new process uploads the file again. Source:
https://docs.cloud.google.com/storage/docs/json_api/v1.
"""

import functools
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from store import credentials
from store.backends.backend import PART_BYTES, Copy, ListedFile, Source
from store.backends.bucket import BucketBackend
from store.manifest import AccessDenied, NoStore, StoreError
from store.patience import Conflict, Patience, Retryable, asked_wait_s, clean

GOOGLE = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
STEP_BYTES = 256 << 10  # all parts of an upload except the last are multiples of this
SLOW_DOWN = ("rateLimitExceeded", "userRateLimitExceeded")  # reasons that may also come with status 403
NO_BUCKET = "bucket does not exist"
OF_BUCKET = ("listing ", "looking for the bucket")  # requests that name no object
HINT = "set GOOGLE_CREDENTIALS to the key file of a service account, or: gcloud auth application-default login"


class GoogleBucket(BucketBackend):
    def __init__(self, uri: str, patience: Patience | None = None, part_bytes: int = PART_BYTES) -> None:
        super().__init__(uri, patience, HINT)
        self.part_bytes = max(STEP_BYTES, part_bytes // STEP_BYTES * STEP_BYTES)

    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        asked = {
            "prefix": f"{self.prefix}{under}/" if under else self.prefix,
            "fields": "items(name,size,generation),nextPageToken",
        }
        found: dict[str, ListedFile] = {}
        while True:
            page = self._json(self._ask(f"listing {under or 'it'}", "GET", self._objects(), asked))
            for one in page.get("items", ()):
                name = one["name"].removeprefix(self.prefix)
                if not name.endswith("/"):  # a folder marker written by some tools
                    found[name] = ListedFile(int(one["size"]), one["generation"])
            if not page.get("nextPageToken"):
                return found
            asked["pageToken"] = page["nextPageToken"]

    def entry(self, name: str) -> ListedFile:
        """Return the entry of a file. Raise FileNotFoundError or StoreError."""
        found = self._json(
            self._ask("looking at it", "GET", self._objects(name), {"fields": "size,generation"}), "size", "generation"
        )
        return ListedFile(int(found["size"]), found["generation"])

    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        if stop <= start:
            return b""
        asked = {"alt": "media", **({"ifGenerationMatch": version} if version else {})}
        part = {"Range": f"bytes={start}-{stop - 1}"}
        answer = self._ask(f"reading {name}", "GET", self._objects(name), asked, part, num_bytes=stop - start)
        return b"" if answer.status == 416 else bytes(answer.data[: stop - start])  # 416: the range starts past the end

    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        for name, source in new.items():
            if isinstance(source, Copy):
                self._copy(name, source)
                continue
            condition = {"ifGenerationMatch": guard[1] or "0"} if guard and guard[0] == name else {}
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            asked = {"name": self.prefix + name, **condition}
            if size > self.part_bytes:
                self._put_parts(name, source, size, asked)
                continue
            body = source if isinstance(source, bytes) else source.read_bytes()
            try:
                answer = self._ask(
                    f"writing {name}",
                    "POST",
                    self._objects(upload=True),
                    {"uploadType": "media", **asked},
                    {"Content-Type": "application/octet-stream"},
                    body,
                    len(body),
                )
                self._json(answer, "name")
            except Conflict:
                if self.get(name, 0, size + 1) != body:
                    # A real conflict. With equal content, our own earlier attempt succeeded and the response was lost.
                    raise
        for name in gone:
            self._ask(f"removing {name}", "DELETE", self._objects(name), absent=True)

    def _copy(self, name: str, source: Copy) -> None:
        """Copy a file within the bucket, server-side."""
        there = f"{self._objects(source.name)}/rewriteTo/b/{self.bucket}/o/{quote(self.prefix + name, safe='')}"
        asked = {"ifSourceGenerationMatch": source.version} if source.version else {}
        while True:  # a large copy takes several requests
            said = self._json(self._ask(f"copying {source.name} to {name}", "POST", there, asked), "done")
            if said["done"]:
                return
            asked["rewriteToken"] = said["rewriteToken"]

    def _put_parts(self, name: str, source: Path | bytes, size: int, asked: Mapping[str, str]) -> None:
        what = f"writing {name}"
        begun = self._ask(what, "POST", self._objects(upload=True), {"uploadType": "resumable", **asked})
        if "location" not in begun.headers:
            raise self._no_google()
        upload, at = begun.headers["location"], 0
        while at < size:
            stop = min(size, at + self.part_bytes)
            tried: list[bool] = []

            def send(at: int = at, stop: int = stop, tried: list[bool] = tried) -> int:
                if tried:  # a retry: ask how many bytes have arrived
                    at = _reached(self._request(what, "PUT", upload, {"Content-Range": f"bytes */{size}"}), size)
                tried.append(True)
                if at >= stop:
                    return at
                part = {"Content-Range": f"bytes {at}-{stop - 1}/{size}"}
                return _reached(self._request(what, "PUT", upload, part, _range(source, at, stop)), size)

            at = self.patience.retry(f"{self.uri}: {what}", send, stop - at)

    def create(self) -> bool:
        try:
            self._ask("looking for the bucket", "GET", self._objects(), {"maxResults": "1"})
            return False
        except NoStore as error:
            if isinstance(error, AccessDenied):
                raise
        account = self._account()
        if account.project is None and not account.is_anonymous:
            raise NoStore(f"{self.uri}: the project for the new bucket is unknown; set GOOGLE_CLOUD_PROJECT")
        asked = {"project": account.project} if account.project else {}
        body, kind = json.dumps({"name": self.bucket}).encode(), {"Content-Type": "application/json"}
        self._ask("making the bucket", "POST", f"{_host()}/storage/v1/b", asked, kind, body)
        return True

    def create_command(self) -> str:
        return f"gcloud storage buckets create gs://{self.bucket}"

    def _objects(self, name: str = "", upload: bool = False) -> str:
        there = f"{_host()}{'/upload' if upload else ''}/storage/v1/b/{self.bucket}/o"
        return f"{there}/{quote(self.prefix + name, safe='')}" if name else there

    def _account(self) -> "GoogleAccount":
        try:
            return _account(
                credentials.value_of("GOOGLE_CREDENTIALS"),
                os.environ.get("STORAGE_EMULATOR_HOST", ""),
                os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", ""),
            )
        except ImportError as error:
            raise NoStore(f"store {self.uri}: {error}") from None

    def _ask(
        self,
        what: str,
        verb: str,
        address: str,
        asked: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        num_bytes: int = 0,
        absent: bool = False,
    ) -> Any:
        """Return the response, with retries. absent: return None for a missing file instead of raising."""
        address = f"{address}?{urlencode(asked)}" if asked else address

        def ask() -> Any:
            try:
                return self._request(what, verb, address, headers or {}, body)
            except FileNotFoundError:
                if not absent:
                    raise
                return None

        return self.patience.retry(f"{self.uri}: {what}", ask, num_bytes)

    def _request(self, what: str, verb: str, address: str, headers: Mapping[str, str], body: bytes = b"") -> Any:
        """Send a single request. Raise Again for a retryable failure, else the error for the response status."""
        from google.auth.exceptions import GoogleAuthError, TransportError
        from urllib3.exceptions import HTTPError

        try:
            account = self._account()
            signed = {**headers, **account.headers(), "Content-Length": str(len(body))}
            timeout = self.patience.answer_s
            answer = account.pool.request(
                verb, address, body=body or None, headers=signed, timeout=timeout, retries=False, redirect=False
            )
        except TransportError as error:
            raise Retryable(f"the account of the keys cannot be queried: {error}") from None
        except GoogleAuthError as error:
            raise AccessDenied(f"{self.uri}: {what}: {clean(error)}; {HINT}") from None
        except (HTTPError, ConnectionError, TimeoutError) as error:
            raise Retryable(f"{type(error).__name__}: {error}") from None
        if answer.status < 300 or answer.status in (308, 416):
            return answer
        raise self._translate_error(what, answer)

    def _json(self, answer: Any, *wanted: str) -> dict[str, Any]:
        """Return the document of an answer with the `wanted` keys. Raise StoreError."""
        try:
            said = json.loads(answer.data)
        except ValueError:
            raise self._no_google() from None
        if not isinstance(said, dict) or not said.keys() >= {*wanted}:
            raise self._no_google()
        return said

    def _no_google(self) -> StoreError:
        return StoreError(
            f"{self.uri}: the service at {_host()} does not answer as Google Cloud Storage; check "
            "STORAGE_EMULATOR_HOST, and whether a proxy or a login page answers instead"
        )

    def _translate_error(self, what: str, answer: Any) -> Exception:
        status, said, reason = answer.status, answer.data[:2000].decode("utf-8", "replace"), ""
        try:
            error = json.loads(said)["error"]
            said, reason = str(error["message"]), str(error["errors"][0]["reason"])
        except (ValueError, KeyError, TypeError, IndexError):
            pass  # not a Google error document; use the body as the message
        words = f"{self.uri}: {what}: {clean(said)[:300]} ({status})"
        if status in (408, 429) or (status >= 500 and status != 501) or reason in SLOW_DOWN:
            return Retryable(f"it answers {status} {reason}".strip(), asked_wait_s(answer.headers))
        if status in (409, 412):
            return self._conflict(words)
        if status in (401, 403):
            return AccessDenied(f"{words}; {HINT}")
        is_object = "No such object" in said  # The name of an object may hold any words.
        if status == 404 and ((NO_BUCKET in said and not is_object) or what.startswith(OF_BUCKET)):
            return self._no_bucket()
        if status in (404, 410) and what.startswith("writing"):
            return Retryable(f"{what}: the upload was aborted meanwhile")
        return FileNotFoundError(words) if status == 404 else StoreError(words)


class GoogleAccount:
    """The credentials for a bucket and the connection pool."""

    def __init__(self, said: str, emulator: str) -> None:
        import urllib3
        from google.auth.transport.urllib3 import Request

        self.pool = _pool(urllib3, emulator or GOOGLE)
        self.request = Request(self.pool)
        self.lock = threading.Lock()
        self.is_anonymous = bool(emulator) and not said
        self.keys: Any = None
        self.project = os.environ.get("GOOGLE_CLOUD_PROJECT")
        if not self.is_anonymous:
            self.keys, project = self._find_credentials(said)
            self.project = self.project or project

    def _find_credentials(self, said: str) -> tuple[Any, str | None]:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
        from google.oauth2 import credentials as users
        from google.oauth2 import service_account

        if not said:
            return google.auth.default(scopes=[SCOPE], request=self.request)
        try:
            info = json.loads(said if said.lstrip().startswith("{") else Path(said).expanduser().read_text("utf-8"))
            if info["type"] == "service_account":
                found = service_account.Credentials.from_service_account_info(info, scopes=[SCOPE])
            else:
                found = users.Credentials.from_authorized_user_info(info, scopes=[SCOPE])
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise DefaultCredentialsError(
                f"GOOGLE_CREDENTIALS is neither a key file nor the path of a key file ({why})"
            ) from None
        return found, info.get("project_id") or info.get("quota_project_id")

    def headers(self) -> dict[str, str]:
        if self.keys is None:
            return {}
        with self.lock:  # a single thread refreshes the token
            if not self.keys.valid:
                self.keys.refresh(self.request)
        return {"Authorization": f"Bearer {self.keys.token}"}


@functools.lru_cache(maxsize=8)
def _account(said: str, emulator: str, file: str) -> GoogleAccount:
    """Return the cached account for all buckets. file: in the cache key only; google-auth reads the variable."""
    return GoogleAccount(said, emulator and _host())


def _pool(urllib3: Any, address: str) -> Any:
    """Return a connection pool that honors the proxy variables of the environment."""
    from urllib.request import getproxies, proxy_bypass

    place = urlsplit(address)
    proxy = getproxies().get(place.scheme)
    if proxy and not proxy_bypass(place.hostname or ""):
        return urllib3.ProxyManager(proxy, maxsize=16)
    return urllib3.PoolManager(maxsize=16)


def _host() -> str:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return (emulator if "://" in emulator else f"http://{emulator}") if emulator else GOOGLE


def _reached(answer: Any, size: int) -> int:
    """Return the number of bytes of an upload that the server has received."""
    if answer.status != 308:
        return size
    said = answer.headers.get("range", "")
    return int(said.rpartition("-")[2]) + 1 if said else 0


def _range(source: Path | bytes, start: int, stop: int) -> bytes:
    if isinstance(source, bytes):
        return source[start:stop]
    with Path(source).open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
