"""The backend of a Hugging Face hub repository: `hf://[datasets/]user/repo[@revision][/folder]`.

One `put` is one commit. Large files are uploaded before the commit, one by one; after an interruption the hub
recognizes uploaded files by sha256, so only missing files are sent again. A commit names its parent commit, so that the
hub rejects a commit based on a stale revision. Readers name the commit to read (`pin`).

Files use LFS over HTTP: the client does so for streams, instead of Xet, and our tests cover this path.
"""

import contextlib
import functools
import hashlib
import io
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from store import credentials
from store.backends.backend import PART_BYTES, Backend, Copy, ListedFile, Source
from store.manifest import AccessDenied, NoStore, StoreError
from store.patience import Conflict, Patience, Retryable, asked_wait_s, clean

AGAIN = {408, 429, 500, 502, 503, 504}
HINT = "set HUGGINGFACEHUB_API_TOKEN or HF_TOKEN to a token with write access"
TRIES = 8  # commit attempts under concurrent commits
_URI = re.compile(r"hf://(?:(datasets|models|spaces)/)?([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/(.*))?")


class Repository(Backend):
    is_atomic = True
    compares_and_sets = True

    def __init__(self, uri: str, patience: Patience | None = None) -> None:
        super().__init__(uri)
        found = _URI.fullmatch(uri)
        if not found:
            raise NoStore(f"store {clean(uri)}: expected hf://user/repo, hf://user/repo/folder or hf://datasets/...")
        kind, self.repo, self.revision, folder = found[1] or "models", found[2], found[3] or "main", found[4] or ""
        self.kind = kind.removesuffix("s")
        self.prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        self.patience = patience or Patience()

    @functools.cached_property
    def _api(self) -> Any:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        try:
            from huggingface_hub import HfApi, constants, set_client_factory
            from huggingface_hub.utils import logging as told
        except ImportError as error:
            raise NoStore(f"store {self.uri}: {error}") from None

        _use_client(self.patience.answer_s, set_client_factory)
        told.set_verbosity_error()  # our own retries report failures
        logging.getLogger("httpx2").setLevel("WARNING")  # httpx2 would log full URLs, including signed URLs
        token = next((value for name in credentials.HUB if (value := credentials.value_of(name))), None)
        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
        return HfApi(endpoint=endpoint, token=token)

    @property
    def _where(self) -> dict[str, str]:
        return {"repo_id": self.repo, "repo_type": self.kind}

    def current_revision(self) -> str:
        return self._ask("asking for its newest commit", lambda: self._head())

    def _head(self) -> str:
        return str(self._api.repo_info(**self._where, revision=self.revision).sha)

    def listing(self, under: str = "", at: str = "") -> dict[str, ListedFile]:
        folder = f"{self.prefix}{under}".rstrip("/")

        def ask() -> dict[str, ListedFile]:
            from huggingface_hub.hf_api import RepoFile

            words = {"path_in_repo": folder} if folder else {}
            tree = self._api.list_repo_tree(**self._where, **words, recursive=True, revision=at or self.revision)
            found = {}
            for one in tree:
                name = one.path.removeprefix(self.prefix)
                if isinstance(one, RepoFile) and one.path.startswith(self.prefix) and one.path != ".gitattributes":
                    digest = one.lfs.sha256 if one.lfs else ""
                    found[name] = ListedFile(one.size, digest or one.blob_id, digest)
            return found

        try:
            return self._ask(f"listing {under or 'it'}", ask)
        except FileNotFoundError:
            return {}

    def get(self, name: str, start: int, stop: int, at: str = "", version: str = "") -> bytes:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        if stop <= start:
            return b""
        stop = min(stop, start + PART_BYTES)

        def ask() -> bytes:
            api = self._api
            url = hf_hub_url(
                self.repo, self.prefix + name, repo_type=self.kind, revision=at or self.revision, endpoint=api.endpoint
            )
            headers = build_hf_headers(token=api.token)  # the client drops these headers on redirects to other hosts
            headers |= {"range": f"bytes={start}-{stop - 1}", "accept-encoding": "identity"}
            with get_session().stream("GET", url, headers=headers, follow_redirects=True) as answer:
                if answer.status_code == 416:
                    return b""
                if answer.status_code >= 400:
                    answer.read()
                    hf_raise_for_status(answer)
                got = bytearray()
                for block in answer.iter_raw():
                    got += block
                    if answer.status_code == 200 and len(got) >= stop:
                        break  # a server without range support sends the whole file
                promised = int(answer.headers.get("content-length", "-1"))
                if answer.status_code == 206 and len(got) < promised:
                    raise Retryable("it broke off")
                return bytes(got if answer.status_code == 206 else got[start:stop])

        return self._ask(f"reading {name}", ask, stop - start)

    def put(self, new: Mapping[str, Source], gone: Iterable[str] = (), guard: tuple[str, str] | None = None) -> None:
        from huggingface_hub import CommitOperationDelete

        self._api  # noqa: B018 its deadlines hold for the uploads
        ours, gone = dict(new), list(gone)
        with contextlib.ExitStack() as open_files:
            adds = {name: self._operation(name, source, open_files) for name, source in ours.items()}
            for _ in range(TRIES):
                head = self.current_revision()
                there = self.listing(at=head)
                if guard and (there[guard[0]].version if guard[0] in there else "") != guard[1]:
                    raise Conflict(f"{self.uri}: a different writer has committed {guard[0]} meanwhile")
                drops = [CommitOperationDelete(self.prefix + name, is_folder=False) for name in gone if name in there]
                if not adds and not drops:
                    return
                copied = [one for one in ours.values() if isinstance(one, Copy) and len(one.version) != 64]
                try:
                    self._commit(
                        f"slipway: {_told(ours, gone)}",
                        [*adds.values(), *drops],
                        head,
                        2 * sum(one.size for one in copied),
                    )
                    return
                except _BranchMoved:
                    if self._is_committed(ours, gone):  # an earlier attempt committed; the response was lost
                        return
            raise Conflict(f"{self.uri}: other writers commit all the time; gave up after {TRIES} tries")

    def _operation(self, name: str, source: Source, open_files: contextlib.ExitStack) -> Any:
        from huggingface_hub import CommitOperationCopy

        if isinstance(source, Copy):
            return CommitOperationCopy(src_path_in_repo=self.prefix + source.name, path_in_repo=self.prefix + name)
        return self._prepare_add(name, source, open_files)

    def _prepare_add(self, name: str, source: Path | bytes, open_files: contextlib.ExitStack) -> Any:
        """Return the add operation of a file for a later commit; upload the content of a large file first."""
        from huggingface_hub import CommitOperationAdd

        size = len(source) if isinstance(source, bytes) else source.stat().st_size

        def bring() -> Any:
            """Upload from a new stream on each attempt, since an abandoned attempt may still read the old stream."""
            stream: Any = io.BytesIO(source) if isinstance(source, bytes) else source.open("rb")
            one = CommitOperationAdd(path_in_repo=self.prefix + name, path_or_fileobj=open_files.enter_context(stream))
            what = {**self._where, "revision": self.revision, "additions": [one], "free_memory": False}
            self._api.preupload_lfs_files(**what)
            return one

        return self._ask(f"writing {name}", bring, size)

    def _request_write(self, name: str) -> None:
        from huggingface_hub import CommitOperationAdd

        one = CommitOperationAdd(path_in_repo=self.prefix + name, path_or_fileobj=b"x")
        what = {**self._where, "revision": self.revision, "additions": [one]}
        self._ask("asking whether it may be written", lambda: self._api.preupload_lfs_files(**what))

    def _commit(self, message: str, operations: list[Any], parent: str, num_bytes: int = 0) -> None:
        """Commit the operations on top of the commit `parent`.

        num_bytes: bytes of small copied files, which the client downloads and uploads again; extends the timeout.
        """
        for one in operations:
            if hasattr(one, "_is_committed"):
                one._is_committed = False  # reset after an attempt with a lost response
        words = {**self._where, "revision": self.revision, "parent_commit": parent, "commit_message": message}
        small = sum(one.upload_info.size for one in operations if getattr(one, "_upload_mode", "") == "regular")
        self._ask("committing", lambda: self._api.create_commit(operations=operations, **words), small + num_bytes)

    def _is_committed(self, new: Mapping[str, Source], gone: Iterable[str]) -> bool:
        there = self.listing()
        same = all(name in there and there[name].version in _versions(source) for name, source in new.items())
        return same and not any(name in there for name in gone)

    def version_of(self, source: Path) -> str:
        return _versions(source)[1]

    def check_writable(self, is_shared: bool = True) -> None:
        """Raise StoreError unless the token has write access: announce an upload, which the hub authorizes.

        No commit follows, so nothing remains in the repository.
        """
        self.current_revision()
        self._request_write(".probe")

    def create(self) -> bool:
        try:
            self.current_revision()
            return False
        except NoStore:
            make = functools.partial(self._api.create_repo, **self._where, private=True, exist_ok=True)
            self._ask("making the repository", make)
            return True

    def create_command(self) -> str:
        return f"hf repo create {self.repo} --type {self.kind} --private"

    def _ask(self, what: str, action: Callable[[], Any], num_bytes: int = 0) -> Any:
        self._api  # noqa: B018 whatever is asked, is asked with our deadlines
        return self.patience.retry(f"{self.uri}: {what}", lambda: self._with_store_errors(what, action), num_bytes)

    def _with_store_errors(self, what: str, action: Callable[[], Any]) -> Any:
        """Return the result of `action`; translate errors of the client into errors of the store."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        _ours.asking = True
        try:
            return action()
        except RuntimeError as error:  # the client wraps errors of uploads
            raise self._translate_error(what, error.__cause__ or error) from None
        except (HfHubHTTPError, httpx2.TransportError, OSError, ValueError) as error:
            raise self._translate_error(what, error) from None

    def _translate_error(self, what: str, error: BaseException) -> Exception:
        import httpx2
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError

        words = f"{self.uri}: {what}: {clean(error)}"
        if isinstance(error, Retryable):
            return error
        if isinstance(error, (httpx2.TransportError, ConnectionError, TimeoutError)):
            return Retryable(f"{type(error).__name__}: {error}")
        if isinstance(error, EntryNotFoundError):
            return FileNotFoundError(words)
        if not isinstance(error, HfHubHTTPError):
            return StoreError(words)
        status = error.response.status_code
        if status == 412 or (status == 409 and what == "committing"):
            return _BranchMoved(words)
        if status in (401, 403) and not isinstance(error, RepositoryNotFoundError):
            return AccessDenied(f"{words}; {HINT}")
        if isinstance(error, RepositoryNotFoundError):
            seen = "no such repository, or the token has no access"
            return NoStore(
                f"{self.uri}: {what}: {seen}; {HINT}, or make the repository: inv ckpt.init --to hf://{self.repo}"
            )
        return FileNotFoundError(words) if status == 404 else StoreError(words)


_ours = threading.local()  # `asking`: the current thread works for a store
_CHOICE = threading.Lock()
_chosen = list[float]()  # timeout of the client of huggingface_hub in this process


def _use_client(answer_s: float, set_factory: Callable[[Callable[[], Any]], None]) -> None:
    """Make huggingface_hub use our client, once per timeout.

    A new factory closes the client that all threads of the process share, under their requests.
    """
    with _CHOICE:
        if _chosen != [answer_s]:
            set_factory(lambda: _client(answer_s))
            _chosen[:] = [answer_s]


def _client(answer_s: float) -> Any:
    """Return the HTTP client of huggingface_hub with a timeout and without its own retries."""
    import httpx2
    from huggingface_hub.utils._http import hf_request_event_hook

    class Client(httpx2.Client):
        def send(self, request: Any, **words: Any) -> Any:
            if not getattr(_ours, "asking", False):  # a request of other code in this process, not of a store
                return super().send(request, **words)
            try:
                answer = super().send(request, **words)
            except httpx2.TransportError as error:
                raise Retryable(f"{type(error).__name__}: {error}") from None
            if answer.status_code in AGAIN:
                raise Retryable(f"it answers {answer.status_code}", asked_wait_s(answer.headers))
            return answer

    hooks = {"request": [hf_request_event_hook]}
    return Client(event_hooks=hooks, follow_redirects=True, timeout=httpx2.Timeout(answer_s))


class _BranchMoved(Exception):
    """The branch has a newer commit than the given parent."""


def _versions(source: Source) -> tuple[str, str]:
    """Return the hub ids of some content: as a large file (sha256) and as a small file (git blob sha1)."""
    if isinstance(source, Copy):
        return source.version, source.version
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    large, small = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    for piece in _pieces(source):
        large.update(piece)
        small.update(piece)
    return large.hexdigest(), small.hexdigest()


def _pieces(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    file: IO[bytes]
    with Path(source).open("rb") as file:
        while piece := file.read(1 << 20):
            yield piece


def _told(new: Iterable[str], gone: Iterable[str]) -> str:
    """Return the commit message: the last file name and the number of further files."""
    names = [*new, *gone]
    return names[-1] if len(names) == 1 else f"{names[-1]} and {len(names) - 1} more"
