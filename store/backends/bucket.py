"""The common base of bucket backends: parsing of `scheme://bucket/folder` and shared error messages."""

from store.backends.backend import Backend
from store.manifest import NoStore
from store.patience import Conflict, Patience, clean


class BucketBackend(Backend):
    """A bucket, or a folder in a bucket: `scheme://bucket/folder`. Raise NoStore for an invalid URI."""

    compares_and_sets = True

    def __init__(self, uri: str, patience: Patience | None, hint: str) -> None:
        super().__init__(uri)
        self.scheme, _, place = uri.partition("://")
        self.bucket, _, folder = place.partition("/")
        if not self.bucket or "@" in self.bucket:
            raise NoStore(f"store {clean(uri)}: expected {self.scheme}://bucket/folder; {hint}")
        self.prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
        self.patience = patience or Patience()

    def _no_bucket(self) -> NoStore:
        return NoStore(
            f"{self.uri}: no such bucket; to make the bucket: inv ckpt.init --to {self.scheme}://{self.bucket}"
        )

    def _conflict(self, words: str) -> Conflict:
        return Conflict(f"{words}: a different writer has written the same object meanwhile")
