"""The backend of an S3 bucket or a folder in a bucket, `s3://bucket/folder`, through botocore.

Credentials, region and endpoint follow the AWS tools (AWS_ACCESS_KEY_ID, profiles, AWS_ENDPOINT_URL, ...). Large
objects use multipart uploads; a retry compares the parts of an earlier upload by MD5 and sends only missing parts.
"""

import contextlib
import functools
import hashlib
import logging
import math
import os
import ssl
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from store import credentials
from store.backends.backend import PART_BYTES, Copy, ListedFile, Source
from store.backends.bucket import BucketBackend
from store.manifest import AccessDenied, NoStore, StoreError
from store.patience import Conflict, Patience, Retryable, StoreAway, asked_wait_s, clean

MOST_PARTS = 9_000  # S3 allows 10,000
# Bytes per copy request. The response comes when the copy is complete and must meet the timeout.
COPY_BYTES = 256 << 20
AGAIN = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable", "Throttling", "OperationAborted"}
CHANGED = {"PreconditionFailed", "ConditionalRequestConflict"}
MISSING = {"NoSuchKey", "404", "NotFound"}
DENIED = {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"}
# Calls about the bucket itself: a 404 is a missing bucket, and of other calls a missing object.
OF_BUCKET = {"head_bucket", "list_objects_v2"}
# Calls with an ETag in the response.
WRITES = {"put_object", "upload_part", "complete_multipart_upload", "copy_object", "upload_part_copy"}
# Abilities that some services lack, by the call or the header that needs the ability.
ABILITIES = {
    "conditions": "conditional writes (If-None-Match, If-Match), so that two runs could overwrite each other's files",
    "list_multipart_uploads": "the listing of multipart uploads, which continues a broken upload",
    "list_parts": "the listing of the parts of an upload, which continues a broken upload",
    "copy_object": "copies within a bucket",
    "upload_part_copy": "copies of parts within a bucket",
    "ranges": "reads of a range of a file",
    "pages": "the listing of a bucket by pages (ListObjectsV2)",
    "tags": "ETags, by which a changed file is noticed",
}
STRANGE_TRIES = 3  # A service that answers differently from S3 so often in a row does so always.
CLOCK = "the clock of this machine differs from the clock of the service; set the clock: timedatectl set-ntp true"
PLACE = (
    "check AWS_ENDPOINT_URL (MinIO: the port of the API, usually 9000, not of the console), and whether a proxy or a "
    "login page answers instead"
)
HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_ENDPOINT_URL for a service other than AWS)"


class Bucket(BucketBackend):
    def __init__(self, uri: str, patience: Patience | None = None, part_bytes: int = PART_BYTES) -> None:
        super().__init__(uri, patience, HINT)
        self.part_bytes = part_bytes
        self.copy_bytes = COPY_BYTES

    @property
    def _client(self) -> Any:
        keys = tuple(credentials.value_of(name) for name in credentials.S3)
        asked = tuple(os.environ.get(name, "") for name in (*credentials.PLACES["s3"], "AWS_PROFILE"))
        try:
            with _making:
                return _client(keys, asked, self.patience.answer_s)
        except ImportError as error:
            raise NoStore(f"store {self.uri}: {error}") from None

    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        prefix = f"{self.prefix}{under}/" if under else self.prefix
        found: dict[str, ListedFile] = {}
        more: dict[str, Any] = {}
        while True:
            page = self._ask(f"listing {under or 'it'}", "list_objects_v2", Prefix=prefix, **more)
            if not page.keys() & {"IsTruncated", "Name", "KeyCount", "Contents"}:  # XML of something else
                raise self._no_s3()
            for one in page.get("Contents", ()):
                name = one["Key"].removeprefix(self.prefix)
                if not name.endswith("/"):  # a folder marker written by some tools
                    found[name] = ListedFile(one["Size"], self._tag(one))
            if not page.get("IsTruncated"):
                return found
            before, more = more, {"ContinuationToken": page.get("NextContinuationToken")}
            if more in (before, {"ContinuationToken": None}):
                raise self._lacks("pages", "it gives no new token for the next page")

    def entry(self, name: str) -> ListedFile:
        """Return the entry of a file. Raise FileNotFoundError or StoreError."""
        found = self._ask("looking at it", "head_object", Key=self.prefix + name)
        return ListedFile(found["ContentLength"], self._tag(found))

    def _tag(self, entry: Mapping[str, Any]) -> str:
        if not entry.get("ETag"):
            raise self._lacks("tags", "it describes a file without an ETag")
        return str(entry["ETag"])

    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        def read() -> bytes:
            condition = {"IfMatch": version} if version else {}
            answer = self._client.get_object(
                Bucket=self.bucket, Key=self.prefix + name, Range=f"bytes={start}-{stop - 1}", **condition
            )
            return bytes(answer["Body"].read())

        if stop <= start:
            return b""
        try:
            return self._retry(f"reading {name}", read, stop - start, "get_object")
        except _Beyond:
            return b""

    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        for name, source in new.items():
            if isinstance(source, Copy):
                self._copy(name, source)
                continue
            condition: dict[str, Any] = {}
            if guard and guard[0] == name:
                condition = {"IfMatch": guard[1]} if guard[1] else {"IfNoneMatch": "*"}
            size = len(source) if isinstance(source, bytes) else source.stat().st_size
            if size <= self.part_bytes:
                body = source if isinstance(source, bytes) else source.read_bytes()
                try:
                    self._ask(f"writing {name}", "put_object", size, Key=self.prefix + name, Body=body, **condition)
                except Conflict:
                    if self.get(name, 0, size + 1) != body:
                        # A real conflict. With equal content, our own earlier attempt succeeded and the response was
                        # lost.
                        raise
            else:
                self._put_parts(name, source, size, condition)
        for name in gone:
            with contextlib.suppress(FileNotFoundError):  # Google's service answers 404 for an absent file.
                self._ask(f"removing {name}", "delete_object", Key=self.prefix + name)

    def _copy(self, name: str, source: Copy) -> None:
        """Copy a file within the bucket, server-side."""
        what = f"copying {source.name} to {name}"
        origin: dict[str, Any] = {"CopySource": {"Bucket": self.bucket, "Key": self.prefix + source.name}}
        if source.version:
            origin["CopySourceIfMatch"] = source.version
        key = self.prefix + name
        if source.size <= self.copy_bytes:
            self._ask(what, "copy_object", source.size, Key=key, **origin)
            return
        for other in self._unfinished_uploads(key):  # unfinished uploads of dead writers
            self._ask(what, "abort_multipart_upload", Key=key, UploadId=other)
        upload = self._begin_upload(what, key)
        parts = []
        for number, start in enumerate(range(0, source.size, self.copy_bytes), 1):
            stop = min(source.size, start + self.copy_bytes)
            part: dict[str, Any] = {"PartNumber": number, "CopySourceRange": f"bytes={start}-{stop - 1}", **origin}
            said = self._ask(what, "upload_part_copy", stop - start, Key=key, UploadId=upload, **part)
            parts.append({"PartNumber": number, "ETag": said["CopyPartResult"]["ETag"]})
        whole: dict[str, Any] = {"UploadId": upload, "MultipartUpload": {"Parts": parts}}
        self._ask(what, "complete_multipart_upload", source.size, Key=key, **whole)

    def _put_parts(self, name: str, source: Path | bytes, size: int, condition: dict[str, Any]) -> None:
        key, what = self.prefix + name, f"writing {name}"
        part_bytes = max(self.part_bytes, math.ceil(size / MOST_PARTS))
        begun = self._unfinished_uploads(key)
        upload = begun[-1] if begun else self._begin_upload(what, key)
        there = self._uploaded_parts(key, upload) if begun else {}
        parts = []
        for number, start in enumerate(range(0, size, part_bytes), 1):
            body = _range(source, start, min(size, start + part_bytes))
            tag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            if there.get(number) != (len(body), tag):
                sent: dict[str, Any] = {"PartNumber": number, "UploadId": upload, "Body": body}
                tag = self._ask(what, "upload_part", len(body), Key=key, **sent)["ETag"]
            parts.append({"PartNumber": number, "ETag": tag})
        whole: dict[str, Any] = {"UploadId": upload, "MultipartUpload": {"Parts": parts}}
        self._ask(what, "complete_multipart_upload", size, Key=key, **whole, **condition)
        for other in begun[:-1]:  # unfinished uploads of dead writers, billed until removed
            self._ask(what, "abort_multipart_upload", Key=key, UploadId=other)

    def _begin_upload(self, what: str, key: str) -> str:
        answer = self._ask(what, "create_multipart_upload", Key=key)
        if not answer.get("UploadId"):
            raise self._no_s3()
        return str(answer["UploadId"])

    def _unfinished_uploads(self, key: str) -> list[str]:
        """Return the ids of unfinished uploads of an object, the newest last."""
        page = self._ask(f"looking for uploads of {key}", "list_multipart_uploads", Prefix=key)
        ours = [one for one in page.get("Uploads", ()) if one["Key"] == key]
        return [one["UploadId"] for one in sorted(ours, key=lambda one: one["Initiated"])]

    def _uploaded_parts(self, key: str, upload: str) -> dict[int, tuple[int, str]]:
        """Return the size and ETag of the uploaded parts, by part number."""
        found: dict[int, tuple[int, str]] = {}
        more: dict[str, Any] = {}
        while True:
            page = self._ask(f"looking for parts of {key}", "list_parts", Key=key, UploadId=upload, **more)
            found |= {one["PartNumber"]: (one["Size"], self._tag(one)) for one in page.get("Parts", ())}
            if not page.get("IsTruncated"):
                return found
            more = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def check_writable(self, is_shared: bool = True) -> None:
        """Raise StoreError unless probes can be written, by parts too, read by ranges, and removed.

        With `is_shared` also conditional writes and copies: some services ignore a condition, and a second writer
        overwrites the file of the first.
        """
        name = f".probe-{uuid.uuid4().hex}"
        new, copy = f"{name}-new", f"{name}-copy"
        with _cleaned(lambda: self.put({}, [name, new, copy])):
            self.put({name: b"first"})
            if is_shared:
                self._check_conditions(name, new)
            with self._requires("ranges"):
                if self.get(name, 1, 3) != (b"ec" if is_shared else b"ir"):
                    raise self._lacks("ranges", "it has returned other bytes")
            source = Copy(name, 6, self.entry(name).version)
            if is_shared:
                with self._requires("copy_object"):
                    self.put({copy: source})
            upload: dict[str, Any] = {"Key": f"{self.prefix}{name}-parts"}
            upload["UploadId"] = self._begin_upload("probing", upload["Key"])
            with _cleaned(lambda: self._ask("probing", "abort_multipart_upload", **upload)):
                self._check_parts(name if is_shared else "", upload)

    def _check_conditions(self, name: str, new: str) -> None:
        """Raise NoStore unless conditions hold for the file `name`, with `second` afterwards, and the file `new`."""
        with self._requires("conditions"):
            self.put({new: b"first"}, guard=(new, ""))
            self.put({name: b"second"}, guard=(name, self.entry(name).version))
        for version, header in (("", "If-None-Match"), (f'"{"0" * 32}"', "If-Match")):
            with self._requires("conditions"), contextlib.suppress(Conflict):
                self.put({name: b"third"}, guard=(name, version))
                raise self._lacks("conditions", f"it has overwritten a file despite {header}")

    def _check_parts(self, copied: str, upload: dict[str, Any]) -> None:
        """Raise NoStore unless an upload by parts can be continued. copied: the file to copy as a part, or ""."""
        if copied:
            with self._requires("upload_part_copy"):
                origin: dict[str, Any] = {"CopySource": {"Bucket": self.bucket, "Key": self.prefix + copied}}
                self._ask("probing", "upload_part_copy", PartNumber=1, **upload, **origin)
        else:
            self._ask("probing", "upload_part", PartNumber=1, Body=b"part", **upload)
        with self._requires("list_multipart_uploads"):
            if upload["UploadId"] not in self._unfinished_uploads(upload["Key"]):
                raise self._lacks("list_multipart_uploads", "it does not list an upload that has begun")
        with self._requires("list_parts"):
            if 1 not in self._uploaded_parts(upload["Key"], upload["UploadId"]):
                raise self._lacks("list_parts", "it does not list a part that has been written")

    @contextlib.contextmanager
    def _requires(self, ability: str) -> Iterator[None]:
        """Turn an error of the service other than a missing bucket, key or connection into a missing ability."""
        try:
            yield
        except (NoStore, StoreAway):
            raise
        except (StoreError, FileNotFoundError) as error:
            raise self._lacks(ability, clean(error).removeprefix(f"{self.uri}: ")) from None

    def _lacks(self, ability: str, said: str) -> NoStore:
        where = self._client.meta.endpoint_url
        return NoStore(
            f"{self.uri}: the service at {where} lacks {ABILITIES.get(ability, ability)}: {said}. Use a different "
            "store, such as a bucket of AWS, Cloudflare R2 or MinIO, gs:// or hf://"
        )

    def create(self) -> bool:
        region = self._client.meta.region_name
        where: dict[str, Any] = (
            {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        )
        try:
            self._ask("looking for the bucket", "head_bucket")
            return False
        except AccessDenied:  # of someone else, or the key may not look
            raise
        except NoStore:
            self._ask("making the bucket", "create_bucket", **where)
            return True

    def create_command(self) -> str:
        return f"aws s3 mb s3://{self.bucket}"

    def _ask(self, what: str, verb: str, num_bytes: int = 0, **words: Any) -> Any:
        def ask() -> Any:
            answer = getattr(self._client, verb)(Bucket=self.bucket, **words)
            told = answer.get("CopyObjectResult") or answer.get("CopyPartResult") or answer
            if verb in WRITES and not told.get("ETag"):  # botocore accepts truncated responses
                raise _CutShort(self._lacks("tags", f"it answers {verb} without an ETag"))
            return answer

        return self._retry(what, ask, num_bytes, "conditions" if words.keys() & {"IfMatch", "IfNoneMatch"} else verb)

    def _retry(self, what: str, action: Callable[[], Any], num_bytes: int, ability: str) -> Any:
        self._client  # noqa: B018 not within the time of an attempt: to make one takes a while
        strange = 0

        def attempt() -> Any:
            nonlocal strange
            before, strange = strange, 0  # any other outcome, also no answer in time, ends the row
            try:
                return self._with_store_errors(what, action, ability)
            except _CutShort as error:
                strange = before + 1
                if strange == STRANGE_TRIES:
                    raise error.otherwise from None
                raise Retryable("the answer was cut short") from None

        return self.patience.retry(f"{self.uri}: {what}", attempt, num_bytes)

    def _with_store_errors(self, what: str, action: Callable[[], Any], ability: str) -> Any:
        """Return the result of `action`; translate errors of botocore into errors of the store."""
        from botocore import exceptions
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError

        try:
            return action()
        except exceptions.ClientError as error:
            raise self._translate_error(what, error, ability) from None
        except exceptions.NoCredentialsError:
            raise AccessDenied(f"{self.uri}: no credentials for the store; {HINT}") from None
        except ResponseParserError:
            raise _CutShort(self._no_s3()) from None
        except exceptions.SSLError as error:
            if any(isinstance(one, ssl.SSLEOFError) for one in error.kwargs["error"].args):  # cut in the handshake
                raise Retryable(f"{type(error).__name__}: {error}") from None
            raise StoreError(f"{self.uri}: {what}: {clean(error)}") from None
        # botocore's errors of a connection are not HTTPClientError, and its ConnectionError is not Python's.
        except (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError) as error:
            raise Retryable(f"{type(error).__name__}: {error}") from None
        except (HTTPError, ConnectionError, TimeoutError) as error:
            raise Retryable(f"{type(error).__name__}: {error}") from None
        except exceptions.BotoCoreError as error:
            raise StoreError(f"{self.uri}: {what}: {clean(error)}") from None

    def _no_s3(self) -> StoreError:
        where = self._client.meta.endpoint_url
        return StoreError(f"{self.uri}: the service at {where} does not answer as S3; {PLACE}")

    def _translate_error(self, what: str, error: Any, ability: str) -> Exception:
        code, answer = error.response.get("Error", {}).get("Code", ""), error.response.get("ResponseMetadata", {})
        status, headers = answer.get("HTTPStatusCode", 0), answer.get("HTTPHeaders", {})
        words = f"{self.uri}: {what}: {clean(error)}"
        if code in CHANGED or status == 412 or (status == 409 and ability == "conditions"):
            return self._conflict(words)
        if status in (405, 501) or code in ("MethodNotAllowed", "NotImplemented"):
            return self._lacks(ability, f"it answers {status} ({code})")
        if status in (408, 429) or status >= 500 or code in AGAIN:
            # botocore reads a page of a proxy or of a console as an error 500.
            page = f" with a page of HTML; {PLACE}" if "html" in headers.get("content-type", "") else ""
            return Retryable(f"it answers {status} ({code}){page}", asked_wait_s(headers))
        if code == "NoSuchBucket" or (status == 404 and ability in OF_BUCKET):
            return self._no_bucket()
        if code == "NoSuchUpload":
            return Retryable(f"{what}: the upload was aborted meanwhile")
        if code == "InvalidRange":
            return _Beyond()
        if code in MISSING or status == 404:
            return FileNotFoundError(words)
        if code == "RequestTimeTooSkewed":  # The clock of a machine that has just started is set soon.
            return Retryable(f"it answers {status} ({code}); {CLOCK}")
        if code in DENIED or status in (401, 403):
            return AccessDenied(f"{words}; {HINT}")
        return StoreError(words)


_making = threading.Lock()


@functools.lru_cache(maxsize=8)
def _client(keys: tuple[str, ...], asked: tuple[str, ...], answer_s: float) -> Any:
    """Return a cached client for an account, shared by all buckets, since creating a client is slow.

    asked: environment values that botocore reads, as part of the cache key.
    """
    from botocore.config import Config
    from botocore.session import get_session

    config = Config(
        retries={"total_max_attempts": 1},  # `Patience` retries and honors Retry-After
        connect_timeout=10,
        read_timeout=answer_s,
        request_checksum_calculation="when_required",  # all that S3-compatible services support
        response_checksum_validation="when_required",
        max_pool_connections=16,
    )
    logging.getLogger("botocore").setLevel("WARNING")  # else botocore logs the source of credentials on every start
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    session = get_session()
    # botocore reads AWS_DEFAULT_REGION alone; the other AWS tools read AWS_REGION first.
    region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
    given = {name: value for name, value in zip(names, keys, strict=True) if value}
    return session.create_client("s3", config=config, region_name=region, **given)


@contextlib.contextmanager
def _cleaned(clean_up: Callable[[], object]) -> Iterator[None]:
    """Call `clean_up` at the end. An error of the work goes before an error of `clean_up`."""
    try:
        yield
    except StoreAway:  # `clean_up` would wait for the service as long again
        raise
    except BaseException:
        with contextlib.suppress(StoreError):
            clean_up()
        raise
    clean_up()


class _CutShort(Exception):
    """An answer that was cut short, or `otherwise` if the service always answers like this."""

    def __init__(self, otherwise: StoreError) -> None:
        super().__init__(str(otherwise))
        self.otherwise = otherwise


class _Beyond(Exception):
    """The range starts past the end of the file."""


def _range(source: Path | bytes, start: int, stop: int) -> bytes:
    if isinstance(source, bytes):
        return source[start:stop]
    with Path(source).open("rb") as file:
        file.seek(start)
        return file.read(stop - start)
