"""SIGKILL and power cuts at every point of a save and elsewhere: the run resumes and ends with the same bits.

A trial forks a process that trains and saves, and kills the process at a point of the trial. Each checkpoint reported
as saved must be present and whole; no checkpoint may be set aside as damaged; the resumed run must reach the hashes of
an undisturbed run.
"""

import os
import random
import select
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.project import debian
from tests import seeds
from tests.faults.lives import Blow, Child, Tell, fork, live, words_of
from tests.faults.points import Points
from tests.faults.trial import rounds
from tests.needs import PRIVILEGE, needs
from tests.trainer.checkpoints.test_checkpoint import training
from trainer import tensor_file
from trainer.checkpoints import checkpoint as checkpoints
from trainer.checkpoints import saving
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints
from trainer.config import CheckpointOptions
from trainer.objectives.source import StepSource

pytestmark = pytest.mark.process

STEPS = 12
KEEPING = CheckpointOptions(save_every=2, keep=2, reserve_bytes=0)
FILES = ("model", "optimizer", "rng")
POINTS = (
    *("step", "copy", "draft", "rename in", "hint", "rename out", "remove"),
    *(f"write {kind}" for kind in FILES),
    *(f"sync {kind}" for kind in FILES),
    *(f"read back {kind}" for kind in FILES),
    *("sync manifest", "sync draft", "sync folder"),
)
NEVER = Blow("", 0, 0.0)
LABELS = tuple(f"{when} {point}" for point in POINTS for when in ("before", "after"))


def instrument(points: Points) -> None:
    """Pass a point before and after each disk operation of a save, in this process, from now on."""

    def wrap(owner: Any, name: str, label: Any) -> None:
        inner = getattr(owner, name)

        def outer(*words: Any, **more: Any) -> Any:
            point = label(*words)
            if point is None:
                return inner(*words, **more)
            with points.around(point):
                return inner(*words, **more)

        setattr(owner, name, outer)

    def synced(descriptor: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name == "MANIFEST.json":
            return "sync manifest"
        if path.is_dir():
            return "sync draft" if path.name.startswith(".tmp") else "sync folder"
        return f"sync {path.name.partition('-')[0]}"

    def kind_of(path: Path, *_: Any) -> str:
        return f"write {path.name.partition('-')[0]}"

    wrap(os, "fsync", synced)
    wrap(tensor_file, "write", kind_of)
    wrap(
        tensor_file,
        "sha256",
        lambda path, *_: f"read back {path.name.partition('-')[0]}" if ".tmp-" in str(path) else None,
    )
    wrap(Path, "rename", lambda path, *_: "rename in" if path.name.startswith(".tmp") else "rename out")
    wrap(Path, "replace", lambda path, *_: "hint" if "LATEST" in path.name else None)
    wrap(Path, "mkdir", lambda path, *_: "draft" if path.name.startswith(".tmp") else None)
    wrap(shutil, "rmtree", lambda path, *_: "remove" if ".trash" in str(path) else None)
    wrap(saving.Saver, "start", lambda *_: "copy")
    assert checkpoints.tensor_file is tensor_file and checkpoints.shutil is shutil


def train(folder: Path, points: Points, tell: Tell) -> None:
    """Train to the end from the existing checkpoints; send each saved step, and the hashes at the end."""
    torch.set_num_threads(1)
    instrument(points)
    one = training(folder, KEEPING, steps=STEPS)
    inner, collect = one.source.batch, saving.Saver.collect

    def batch(step: int) -> Any:
        with points.around("step"):
            return inner(step)

    def collected(saver: saving.Saver) -> bool:
        is_saved = collect(saver)
        if is_saved:
            tell("saved", (folder / "saved" / "LATEST").read_text().strip())
        return is_saved

    one.source = StepSource(batch)
    saving.Saver.collect = collected  # type: ignore[method-assign]
    with one.checkpoints.locked():
        final = one.run()
    assert final is not None
    tell("ended", hashes(final))


def hashes(one: Checkpoint) -> str:
    return " ".join(file["sha256"] for file in one.manifest["files"])


def blow_at(unhit: set[str], chance: random.Random) -> Blow:
    """Return a blow at an uncovered point; after full coverage anywhere, also a moment after a point."""
    if unhit:
        return Blow(chance.choice(sorted(unhit)), 1, 0.0)
    if chance.random() < 0.5:
        return Blow("", chance.randrange(1, 150), chance.choice((0.0, chance.uniform(0, 0.02))))
    return Blow(chance.choice(LABELS), chance.randrange(1, 6), chance.choice((0.0, chance.uniform(0, 0.005))))


@pytest.mark.nightly  # The kills must cover every point of a save: fifty or more.
@rounds(50, 500)
def test_run_killed_at_every_point_of_a_save_ends_with_the_bits_of_an_undisturbed_run(tmp_path, rounds):
    seed = seeds.seed()
    chance, unhit, killed = random.Random(seed), set(LABELS), 0
    undisturbed = dict(live(lambda points, tell: train(tmp_path / "alone", points, tell), NEVER).told)
    folder, newest = tmp_path / "work", 0
    for number in range(rounds + 1):
        blow = blow_at(unhit, chance) if number < rounds else NEVER  # The last process lives to the end.
        life = live(lambda points, tell: train(folder, points, tell), blow)
        killed += life.was_killed
        if life.was_killed and not blow.delay_s:
            unhit.discard(blow.label)
        told = dict(life.told)
        newest = max(newest, int(told["saved"].removeprefix("step-")) if "saved" in told else 0)
        found = Checkpoints(folder / "saved", KEEPING).find_newest()
        assert (found.step if found else 0) >= newest, (blow, life.labels[-5:])
        assert not list((folder / "saved").glob(".bad-*")), (blow, life.labels[-5:])
        assert life.was_killed or told["ended"] == undisturbed["ended"], blow
        if not life.was_killed:
            shutil.rmtree(folder)
            newest = 0
    assert killed >= 0.6 * rounds
    assert unhit == set()


def make_image(path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(
        [debian.find("mkfs.ext4"), "-q", "-F", "-E", "lazy_itable_init=0", path], check=True, capture_output=True
    )
    return path


class Mounted:
    def __init__(self, image: Path, folder: Path) -> None:
        self.image, self.folder = image, folder

    def __enter__(self) -> Path:
        self.folder.mkdir()
        done = subprocess.run(["mount", "-o", "loop", self.image, self.folder], capture_output=True, text=True)
        assert done.returncode == 0, f"this test mounts an image, which needs root and a loop device: {done.stderr}"
        return self.folder

    def __exit__(self, *_: object) -> None:
        subprocess.run(["umount", self.folder], check=True)
        self.folder.rmdir()


def cut_power(folder: Path, chance: random.Random, work: Any) -> tuple[int, int]:
    """Train on a separate disk, and copy the disk's content at a random moment, without a sync.

    Return (the newest step reported as saved, the newest whole step on that disk).
    """
    needs("mkfs.ext4", PRIVILEGE)
    folder.mkdir()
    image, after = make_image(folder / "image"), folder / "after"
    with Mounted(image, folder / "disk") as disk:
        child = fork(lambda tell: work(disk, tell))
        said, wanted = b"", chance.randrange(0, 6)
        while said.count(b"saved\t") < wanted and (chunk := child.hear(None)):
            said += chunk
        select.select([], [], [], chance.uniform(0, 0.02))
        os.kill(child.pid, signal.SIGSTOP)
        said += output_of(child)
        shutil.copyfile(image, after)  # The copy lacks data that was not flushed.
        os.kill(child.pid, signal.SIGKILL)
        child.end(-signal.SIGKILL, 0)
    told = [int(about.removeprefix("step-")) for what, about in words_of(said) if what == "saved"]
    with Mounted(after, folder / "disk") as disk:
        saved = disk / "saved"
        found = Checkpoints(saved, KEEPING).find_newest() if saved.exists() else None
        assert not list(disk.glob("saved/.bad-*"))
    shutil.rmtree(folder)
    return max(told, default=0), found.step if found else 0


def output_of(child: Child) -> bytes:
    """Return the process's output until the stop."""
    said = b""
    while select.select([child.ear], [], [], 0)[0] and (chunk := os.read(child.ear, 1 << 16)):
        said += chunk
    return said


@rounds(8, 200)
def test_saved_checkpoint_exists_after_a_power_cut(tmp_path, rounds):
    seed = seeds.seed()
    chance, seen = random.Random(seed), []
    for number in range(rounds):
        told, found = cut_power(tmp_path / str(number), chance, lambda disk, tell: train(disk, Points(_pass), tell))
        assert found >= told, f"step {told} was told as saved, the disk has {found}"
        seen.append(told)
    assert max(seen) > 0


def _pass(label: str, nth: int) -> None:
    pass


def test_power_cut_detects_an_unsynced_save(tmp_path):
    def careless(disk: Path, tell: Tell) -> None:
        os.fsync = lambda descriptor: None  # type: ignore[assignment]
        train(disk, Points(_pass), tell)

    chance = random.Random(5)
    results = [cut_power(tmp_path / str(number), chance, careless) for number in range(4)]
    assert any(found < told for told, found in results), results
