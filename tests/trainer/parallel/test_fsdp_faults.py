"""One of several processes dies or hangs, at any point: all exit, no saved checkpoint is lost, and the run resumes.

A trial forks two processes that train a model sharded in two; a blow hits one of them at a labelled point, mostly of a
save. The resumed run must reach the bits of an undisturbed run.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import seeds
from tests.faults.lives import Child, Tell
from tests.faults.points import Points, die
from tests.faults.trial import rounds
from tests.trainer.checkpoints.test_kills import LABELS, hashes, instrument
from tests.trainer.parallel.test_fsdp import config, training
from tests.trainer.parallel.together import fork_processes, together
from trainer.checkpoints import saving
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.config import CheckpointOptions
from trainer.errors import PeerLost
from trainer.objectives.source import StepSource
from trainer.parallel import process_group as ranks_module
from trainer.parallel.process_group import Ranks

pytestmark = pytest.mark.process

CONFIG = config(steps=6)
KEEPING = CheckpointOptions(save_every=2, keep=2, reserve_bytes=0)
LOST = PeerLost.exit_code
DEADLINE_S = 60.0  # Guard against hanging.
FIRST_ALONE = ("draft", "rename", "hint", "remove", "rng", "sync manifest", "sync draft", "sync folder")
AGREED = ("before agree", "after agree")
PLACES = [(0, label) for label in (*LABELS, *AGREED)] + [
    (1, label) for label in (*LABELS, *AGREED) if not any(word in label for word in FIRST_ALONE)
]


def train(folder: Path, ranks: Ranks, points: Points, tell: Tell) -> None:
    """Train to the end from the existing checkpoints; the first process sends each saved step, and the hashes at the
    end.
    """
    instrument(points)
    agree, collect = ranks_module.Ranks.all_gather, saving.Saver.collect

    def agreed(self: Ranks, words: Any) -> list[Any]:
        with points.around("agree"):
            return agree(self, words)

    def collected(self: saving.Saver) -> bool:
        is_saved = collect(self)
        if is_saved and ranks.is_first:
            tell("saved", (folder / "saved" / "LATEST").read_text().strip())
        return is_saved

    ranks_module.Ranks.all_gather = agreed  # type: ignore[method-assign]
    saving.Saver.collect = collected  # type: ignore[method-assign]
    one = training(folder, CONFIG, ranks, "fsdp", KEEPING)
    inner = one.source.batch

    def batch(step: int) -> Any:
        with points.around("step"):
            return inner(step)

    one.source = StepSource(batch)
    final = one.run()
    tell("ended", hashes(final) if final else "")


def passing(rank: int, place: tuple[int, str], nth: int, blow: Callable[[], None]) -> Points:
    """Apply `blow` at the nth pass of the place."""

    def passed(label: str, count: int) -> None:
        if (rank, label) == place and count == nth:
            blow()

    return Points(passed)


def leave(children: list[Child]) -> tuple[list[int], dict[str, str]]:
    """Return (exit codes, the first process's last message of each kind)."""
    told = [child.leave(DEADLINE_S) for child in children]
    return [code for _, code in told], dict(told[0][0])


@pytest.mark.nightly
@rounds(4, 300)
def test_process_killed_anywhere_in_a_sharded_save_leaves_the_bits_of_an_undisturbed_run(tmp_path, rounds):
    seed = seeds.seed()
    chance, unhit, killed, newest = random.Random(seed), set(PLACES), 0, 0
    alone = together(2, lambda ranks, tell: train(tmp_path / "alone", ranks, Points(_pass), tell))
    folder = tmp_path / "work"
    for number in range(rounds + 1):
        place, nth = chance.choice(sorted(unhit) or PLACES), chance.choice((1, 1, 2, 3)) if not unhit else 1
        if number == rounds:
            place, nth = (0, "never"), 1

        def work(ranks: Ranks, tell: Tell, place: tuple[int, str] = place, nth: int = nth) -> None:
            train(folder, ranks, passing(ranks.rank, place, nth, die), tell)

        codes, told = leave(fork_processes(2, work))
        was_killed = -signal.SIGKILL in codes
        if was_killed:
            assert codes[place[0]] == -signal.SIGKILL and codes[1 - place[0]] in (0, LOST), (place, codes)
            unhit.discard(place)
        killed += was_killed
        newest = max(newest, int(told["saved"].removeprefix("step-")) if "saved" in told else 0)
        found = Checkpoints(folder / "saved", KEEPING).find_newest()
        assert (found.step if found else 0) >= newest, place
        assert not list((folder / "saved").glob(".bad-*")), place
        if not was_killed:
            assert (codes, told["ended"]) == ([0, 0], alone[0]["ended"]), place
            for path in (folder / "saved").glob("step-*"):
                path.rename(tmp_path / f"{number}-{path.name}")
            newest = 0
    assert killed >= 0.6 * rounds
    assert rounds < len(PLACES) or not unhit


def _pass(label: str, nth: int) -> None:
    pass


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("place", [(1, "before step"), (0, "before write optimizer"), (1, "before agree")], ids=str)
def test_hanging_process_makes_the_others_exit_for_a_restart(tmp_path, place):
    def work(ranks: Ranks, tell: Tell) -> None:
        def stop() -> None:
            tell("silent", "")
            os.kill(os.getpid(), signal.SIGSTOP)

        train(tmp_path, ranks, passing(ranks.rank, place, 2, stop), tell)

    children = fork_processes(3, work, timeout_s=2.0)
    silent = children.pop(place[0])
    try:
        for child in children:
            told, code = child.leave(DEADLINE_S)
            assert code == LOST and "lost" in dict(told), told
    finally:
        os.kill(silent.pid, signal.SIGKILL)
        said, code = silent.leave(DEADLINE_S)
    assert code == -signal.SIGKILL and ["silent", ""] in said
    found = Checkpoints(tmp_path / "saved", KEEPING).find_newest()
    assert found is None or found.step in (2, 4)
