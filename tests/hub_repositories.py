"""Repositories of the hub in tests/hub.py: commits of uploaded files, or a folder of files."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

COMMIT = "0123456789abcdef0123456789abcdef01234567"  # of a folder
REGULAR_BYTES = 100  # larger files use LFS


@dataclass(frozen=True)
class Blob:
    content: bytes
    is_lfs: bool

    @property
    def oid(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class CommittedRepo:
    """A repository of uploaded files. Uploaded content stays, with or without a commit."""

    commits: list[tuple[str, Mapping[str, Blob]]] = field(default_factory=list)
    lfs: dict[str, bytes] = field(default_factory=dict)
    parts: dict[tuple[str, int], bytes] = field(default_factory=dict)
    token = ""

    def __post_init__(self) -> None:
        self.commit({".gitattributes": Blob(b"*.safetensors filter=lfs\n", False)})

    def commit(self, files: Mapping[str, Blob]) -> str:
        seed = repr((len(self.commits), sorted((name, blob.oid) for name, blob in files.items())))
        sha = hashlib.sha1(seed.encode()).hexdigest()
        self.commits.append((sha, files))
        return sha

    @property
    def files(self) -> Mapping[str, Blob]:
        return self.commits[-1][1]

    def at(self, revision: str) -> tuple[str, Mapping[str, Blob]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((one for one in self.commits if one[0] == revision), None)

    def card(self) -> dict[str, Any]:
        return {}


@dataclass
class FolderRepo:
    """A data set or a model: a folder of files, the text of the card, and the required token."""

    folder: Path
    configs: list[dict[str, Any]] = field(default_factory=list)
    token: str = ""
    gated: bool = False
    """True for a visible repository with files that only the token opens."""

    def at(self, revision: str) -> tuple[str, Mapping[str, Blob]] | None:
        return (COMMIT, FolderFiles(self.folder)) if revision in ("main", COMMIT) else None

    def card(self) -> dict[str, Any]:
        """Return the head of the card."""
        if self.configs:
            return {"configs": self.configs}
        readme = self.folder / "README.md"
        text = readme.read_text() if readme.is_file() else ""
        return dict(yaml.safe_load(text.split("---\n")[1])) if text.startswith("---\n") else {}


@dataclass(frozen=True)
class FolderFiles(Mapping[str, Blob]):
    """The files of a folder, each read on request."""

    folder: Path

    def __getitem__(self, name: str) -> Blob:
        try:
            content = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise KeyError(name) from None
        return Blob(content, len(content) > REGULAR_BYTES)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(one.relative_to(self.folder).as_posix() for one in self.folder.rglob("*") if one.is_file()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


Repo = CommittedRepo | FolderRepo
