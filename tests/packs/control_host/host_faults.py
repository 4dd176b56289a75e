"""Repeated faults of a control host and its laptops.

    python -m tests.packs.control_host.host_faults WHAT --times 20 --seed 5

    laptops   a laptop is cut off for good at a random moment
    boots     the control host goes down, and comes up through cron's @reboot
    disks     the control host's disk is gone, and `control.down --lost` rebuilds the journal
    full      the control host's disk is full for a while
    pairs     two laptops type the same at the same time

Each fault prints the end of every run, and fails at the first unknown machine or the first machine ended during its
work.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from infra.ledger.op import Op
from infra.runs import run_rows
from tests import seeds
from tests.hosts import call
from tests.packs.control_host.host_site import GPU, ControlBed, Wrong, chance_of, control_bed, kill, say, wait

SPEED = 20.0
AT_ONCE = 8  # Launches of a laptop that one cut interrupts.
WORK_S = 5.0
LONGEST_S = 90.0  # Between the first typed command and the cut.
END_S = 900.0
BOOT_S = 60.0  # A booted host is supervised again within this time.
FULL_S = 60.0  # Longest time of a full disk.
ROOM_BYTES = 64_000_000  # Free space on the small disk, in addition to the existing files.


class Rig:
    def __init__(self, here: ControlBed, seed: int) -> None:
        self.here, self.chance, self.counts = here, chance_of(seed), Counter[str]()
        self.numbers = iter(range(1, 1_000_000))

    def names(self, count: int) -> dict[str, str]:
        """Return `count` new runs, with the vendor of each."""
        return {f"run-{next(self.numbers)}": self.chance.choice(list(GPU)) for _ in range(count)}

    def type(self, laptop: int, words: list[str]) -> "subprocess.Popen[str]":
        return self.here.laptops[laptop].begin(*words)

    def end(self, name: str) -> str:
        """Return the end of a run, "" for a live run."""
        rows = self.here.rows(run=name)
        if not rows:
            return "never begun"
        if rows[-1].is_live or self.is_kept(name) and not run_rows.is_over(rows[-1]):
            return ""
        if self.here.verdict(name) == "succeeded":
            return "succeeded"  # The run ended the pod itself, and the end was recorded before the verdict.
        if rows[-1].outcome == "" and not self.here.was_handed_over(name):
            return "cut off before the hand-over"
        return rows[-1].outcome or "lost"

    def is_kept(self, name: str) -> bool:
        return (
            f"keep:{name}" in self.here.journal.leases.held_names()
            or f"keep:{name}" in self.here.journal.leases.abandoned_names()
        )

    def judge(self, name: str, *allowed: str) -> None:
        """Raise Wrong when a run ended neither like an undisturbed run nor as `allowed`."""
        how = self.end(name)
        if self.here.event_count(name, "twice"):
            raise Wrong(f"{name}: two worked on it at the same time")
        if how not in ("succeeded", *allowed):
            raise Wrong(f"{name}: {how}: {[summary(row) for row in self.here.rows(run=name)]}")
        if how == "succeeded" and not self.here.event_count(name, "done"):
            raise Wrong(f"{name} is called succeeded, and its work was never done")
        self.counts[how] += 1

    def wait_for(self, names: "dict[str, str]", look: "Callable[[], None] | None" = None) -> None:
        wait(lambda: all(self.end(one) for one in names), f"the end of {list(names)}", END_S, look)
        wait(lambda: not self.here.billing(), "that nothing bills", END_S, look)

    def tell(self, done: int, what: str) -> None:
        counts = ", ".join(f"{count} {how}" for how, count in sorted(self.counts.items()))
        say(f"{done} {what}: {counts}; 0 orphans, 0 duplicates, 0 early ends")

    def laptops(self, times: int) -> None:
        """Cut off the laptop for good; observe the results without the laptop and without further commands."""
        here, done = self.here, 0
        while done < times:
            names = self.names(min(AT_ONCE, times - done))
            begun = []
            cut_at = time.monotonic() + self.chance.uniform(1.0, LONGEST_S)
            for name, vendor in names.items():
                begun.append(self.type(0, here.launch(name, vendor, WORK_S)))
                time.sleep(max(0.0, min(self.chance.uniform(0, 6), cut_at - time.monotonic())))
            time.sleep(max(0.0, cut_at - time.monotonic()))
            here.cables[0].cut()
            at = Counter(row.state if (row := here.row(name)) else "not begun" for name in names)
            for process in begun:
                kill(process.pid, signal.SIGKILL)
                process.communicate()
            self.wait_for(names)
            for name in names:
                self.judge(name, "never begun", "cut off before the hand-over")
            here.check_nothing_left()
            here.cables[0].restore()
            done += len(names)
            self.counts.update({f"at {state}": count for state, count in at.items()})
            self.tell(done, "moments of a laptop that was cut off")

    def boots(self, times: int) -> None:
        here, slowest = self.here, 0.0
        for number in range(1, times + 1):
            names = self.names(2)
            for name, vendor in names.items():
                here.laptop.json(*here.launch(name, vendor, WORK_S, "--detach"))
            time.sleep(self.chance.uniform(0, 8))
            here.switch_off()
            there = [one["id"] for one in here.market.truth()["pods"] if one["state"] == "running"]
            if there and self.chance.random() < 0.5:
                here.market.send_command("/preempt", {"id": self.chance.choice(there)})
                self.counts["machines taken meanwhile"] += 1
            time.sleep(self.chance.uniform(0, 5))
            began = time.monotonic()
            is_needed = any(row.is_live for name in names for row in here.rows(run=name))
            here.boot()
            if is_needed:
                wait(lambda: here.is_supervised() or all(map(self.end, names)), "a supervisor", BOOT_S)  # noqa: B023
                slowest = max(slowest, time.monotonic() - began)
            self.wait_for(names)
            for name in names:
                self.judge(name)
            here.check_nothing_left()
            self.tell(number, f"boots, supervised again after {slowest:.1f} s at most")

    def disks(self, times: int) -> None:
        """Remove all data of the control host; the laptop has a copy, sometimes an old copy."""
        here = self.here
        for number in range(1, times + 1):
            names = self.names(2)
            for at, (name, vendor) in enumerate(names.items()):
                (here.folder / "said" / f"{name}.hold").touch()
                here.laptop.json(*here.launch(name, vendor, WORK_S, "--detach"))
                if not at:
                    (copy,) = (here.laptop.folder / "state").glob("journal-control/*/copy")
                    older = copy.read_bytes()
            wait(lambda: all(here.event_count(name, "begun") for name in names), "work", END_S)  # noqa: B023
            is_old = self.chance.random() < 0.5
            if is_old:  # The copy with the second run was lost.
                copy.write_bytes(older)
            here.switch_off()
            shutil.rmtree(here.places.root)
            before = here.billing()
            here.host.start()
            here.laptop.json("control.down", "--lost", "--yes")
            rows = {row["run"]: row["state"] for row in here.laptop.json("status")}
            out = here.laptop.run("audit", "--json", timeout_s=END_S).stdout
            listed = {one["id"] for one in json.loads(out)["machines"]}
            now = here.billing()
            if now.keys() != before.keys():
                raise Wrong(f"ended that worked: {before.keys() - now.keys()}; begun: {now.keys() - before.keys()}")
            if missing := before.keys() - listed:
                raise Wrong(f"not listed: {missing}")
            called = dict.fromkeys(names, "") | {name: name for name in names if name in rows}
            if is_old and vendor == "lium":  # Lium's listing has no space for the name of a run.
                called[name] = next((run for run in rows if run.startswith("found-") and rows[run] == "lost"), "")
            if "" in called.values():
                raise Wrong(f"no row: {called} ({rows})")
            self.counts["old copies" if is_old else "new copies"] += 1
            for name in names:
                (here.folder / "said" / f"{name}.hold").unlink()
            self.counts.update(rows[run] for run in called.values())
            for run in called.values():
                here.laptop.json("down", run)
            if left := here.billing():
                raise Wrong(f"it bills after `down`: {left}")
            if number < times:
                here.up()
            self.tell(number, "disks gone")

    def full(self, times: int) -> None:
        """Fill the control host's disk for a while: runs end normally, and no cleanup is needed."""
        here = self.here
        here.switch_off()
        with small_disk(here.host.folder):
            here.boot()
            for number in range(1, times + 1):
                names = self.names(2)
                for name, vendor in names.items():
                    here.laptop.json(*here.launch(name, vendor, WORK_S, "--detach"))
                time.sleep(self.chance.uniform(0, 15))
                ballast = fill(here.host.folder)
                full_until = time.monotonic() + self.chance.uniform(5, FULL_S)
                if self.chance.random() < 0.5 and (there := list(here.billing())):
                    here.market.send_command("/preempt", {"id": self.chance.choice(there)})
                    self.counts["machines taken meanwhile"] += 1
                ((new, vendor),) = self.names(1).items()
                refused = self.type(0, here.launch(new, vendor, WORK_S, "--detach"))
                _, err = refused.communicate(timeout=END_S)
                if "Traceback" in err:
                    raise Wrong(err)
                self.counts[f"launches meanwhile left with {refused.returncode}"] += 1
                time.sleep(max(0.0, full_until - time.monotonic()))
                ballast.unlink()
                self.wait_for(names)
                for name in names:
                    self.judge(name)
                if here.rows(run=new):
                    self.wait_for({new: vendor})
                    self.judge(new, "never begun", "cut off before the hand-over")
                here.check_nothing_left()
                self.tell(number, "times a full disk")
            here.switch_off()

    def pairs(self, times: int) -> None:
        """Let two laptops launch, end and query the same runs at the same time."""
        here = self.here
        for number in range(1, times + 1):
            names = self.names(2)
            (one, vendor), (other, _) = names.items()
            same = [self.type(laptop, here.launch(one, vendor, WORK_S)) for laptop in (0, 1)]
            beside = self.type(1, here.launch(other, vendor, 60))
            looks = [self.type(laptop, ["status", "--json"]) for laptop in (0, 1)]
            wait(lambda: here.event_count(other, "begun") or beside.poll() is not None, "work", END_S)  # noqa: B023
            downs = [self.type(laptop, ["down", other, "--json"]) for laptop in (0, 1)]
            for process in (*same, *looks, *downs, beside):
                _, err = process.communicate(timeout=END_S)
                if "Traceback" in err:
                    raise Wrong(err)
            if 0 not in [process.returncode for process in same]:
                raise Wrong(f"neither launch of {one} succeeded: {[process.returncode for process in same]}")
            if [process.returncode for process in looks] != [0, 0]:
                raise Wrong("a look failed")
            self.wait_for(names)
            self.judge(one)
            rented = len([row for row in here.rows(run=one) if row.remote_id])
            if rented != 1:
                raise Wrong(f"{one} was rented {rented} times")
            self.counts["launches of one name by two"] += 1
            self.counts.update(f"second leaves with {process.returncode}" for process in same)
            here.check_nothing_left()
            self.tell(number, "rounds of two laptops")


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a file system with ROOM_BYTES of free space over a folder, with a copy of the content."""
    disk = folder.with_name(f"{folder.name}.disk")
    disk.mkdir()
    used = int(subprocess.run(["du", "-sb", folder], capture_output=True, check=True).stdout.split()[0])
    call("mount", "-t", "tmpfs", "-o", f"size={used + ROOM_BYTES}", "none", disk)
    call("cp", "-a", f"{folder}/.", disk)
    call("mount", "--bind", disk, folder)
    try:
        yield
    finally:
        call("umount", "--lazy", folder)
        call("umount", "--lazy", disk)


def fill(folder: Path) -> Path:
    """Take all free space of the disk; return the file that holds the space."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        while (free := os.statvfs(folder)).f_bavail:
            # Processes of the host write meanwhile, and a file that does not fit is not extended at all.
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, free.f_bavail * free.f_frsize)
    return ballast


def summary(row: Op) -> str:
    return f"{row.token} {row.state} {row.outcome!r} {row.reason!r} recoveries {row.recoveries}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["laptops", "boots", "disks", "full", "pairs"])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int)
    words = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix=f"{words.what}-"))
    is_lost = words.what == "disks"  # The laptop that rebuilds the journal asks the market itself.
    with control_bed(folder, SPEED, laptops=2 if words.what == "pairs" else 1, are_apart=not is_lost) as here:
        rig = Rig(here, seeds.seed() if words.seed is None else words.seed)
        try:
            here.up()
            getattr(rig, words.what)(words.times)
        except Wrong as wrong:
            say(f"WRONG: {wrong}; see {folder}")
            return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
