"""Folder of a run on the local machine, beside the journal: all paths and the writer of each path.

    RUN/run.json, run.diff       the receipt                                    written by the local machine
    RUN/keep.log, launch.*       messages of the supervisor and of a sweep      written by the local machine
    RUN/tracking/                metrics sent later to trackers of the run      written by the local machine
    RUN/kept/                    files for the next pod: code/, the carried folders, carried.json and
                                 the marker POD.json                            written by the local machine
    RUN/pod/                     a copy of the pod's folder: logs/, state/, work/, and drafts in incoming/: untrusted
                                 input, written only by `infra.runs.sync.fetched_files`

Records in `pod/` never decide which local file is removed, sent or run.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent.job import PodFolder, write_durably
from infra.errors import SlipwayError
from infra.names import check_name
from store import untrusted_input


@dataclass(frozen=True)
class RunHome:
    """The local paths of a run."""

    folder: Path

    @staticmethod
    def for_run(run: str, homes: Path) -> "RunHome":
        """Return the home of a run below `Settings.homes`. Raises UsageError for an invalid run name."""
        return RunHome(homes / check_name(run))

    @property
    def receipt(self) -> Path:
        return self.folder / "run.json"

    @property
    def receipt_diff(self) -> Path:
        return self.folder / "run.diff"

    @property
    def keep_log(self) -> Path:
        return self.folder / "keep.log"

    @property
    def launch_log(self) -> Path:
        return self.folder / "launch.log"

    @property
    def launch_answer(self) -> Path:
        return self.folder / "launch.json"

    @property
    def tracking(self) -> Path:
        return self.folder / "tracking"

    @property
    def snapshot(self) -> PodFolder:
        return PodFolder(self.folder / "kept")

    @property
    def carried(self) -> Path:
        return self.snapshot.root / "carried.json"

    @property
    def pod(self) -> PodFolder:
        return PodFolder(self.folder / "pod")

    @property
    def incoming(self) -> Path:
        return self.pod.root / "incoming"

    @property
    def cuts(self) -> Path:
        return self.pod.root / "cuts.json"


def write_record(path: Path, said: Mapping[str, Any]) -> None:
    """Write a local record durably; a reader sees either the old or the new version."""
    write_durably(path, json.dumps(said, indent=1, default=str))


def read_record(path: Path) -> dict[str, Any]:
    """Return a local record. Raises FileNotFoundError, and SlipwayError for a link, a folder or an unreadable file."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise SlipwayError(
                f"{path} is a link or a folder instead of a record of Slipway, and is not used. Check: ls -l {path}"
            )
        return untrusted_input.load(path)
    except untrusted_input.UnusableDocument as error:
        raise SlipwayError(f"{path} cannot be read: {error}") from None


def own_folder(home: RunHome, folder: Path) -> Path:
    """Return a folder of the run's home. Raises SlipwayError if the path is no folder, or if any part is a link."""
    where = home.folder.resolve() / folder.relative_to(home.folder)
    if not folder.is_dir() or folder.resolve() != where:
        raise SlipwayError(
            f"{folder} is not a folder of this run, or is a link, and is not used. Check: ls -ld {folder}"
        )
    return folder
