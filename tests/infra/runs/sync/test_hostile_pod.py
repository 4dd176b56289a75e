"""A pod that lies: for any listing, report and content, only `pod/` of the run changes, and only `pod/` is sent on.

Hypothesis draws the answers of the pod: listings, sizes, contents that change between two reads, manifests, reports;
and links that a user has put into `pod/` before. 2,000 examples: SLIPWAY_HOSTILE_EXAMPLES=2000.
"""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.agent.job import Job, Step
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.run_home import RunHome, write_record
from infra.runs.sync import fetched_files, mirror, reports, snapshot
from infra.transport.protocol import LIMIT_BYTES, Result, ThisMachine
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from store.untrusted_input import is_of_run
from tests import seeds

pytestmark = pytest.mark.process

RUN, TOKEN, SECRET = "a-1", "sw1-test", b"the key of the laptop"
POD_ROOT = "/root/pods/a-1"
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
WEIGHTS, ENDLESS = b"weights of the pod", b"e" * 4096
FILE_BYTES, RUN_BYTES, MOST_FILES, PIECE = 1 << 15, 1 << 17, 40, 4096
EXAMPLES = int(os.environ.get("SLIPWAY_HOSTILE_EXAMPLES", "0")) or seeds.examples(60, 2000)
MANY = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
MAKING = {"name": "base", "fingerprint": "f" * 12, "inputs": {}}
JOB = Job(RUN, TOKEN, (Step("base", ("-m", "trainer"), config={"making": MAKING}),))
OP = Op(token=TOKEN, run=RUN, vendor="ssh", address=POD_ROOT, job=JOB.to_json())

CHECKPOINT = "work/checkpoints/base/step-000000005"
GOOD = (
    "logs/run.log", "logs/run.times", "logs/carried.log", "state/earlier/run.log", "state/marks/base.json",
    "work/runs/base/metrics.jsonl", f"{CHECKPOINT}/MANIFEST.json", "work/checkpoints/base/step-000000007/MANIFEST.json",
)  # fmt: skip
OURS = (
    "carried.json",
    "run.json",
    "POD.json",
    "keep.log",
    "launch.log",
    "kept/carried.json",
    "kept/POD.json",
    "code/a",
)
PARTS = (
    "", ".", "..", "logs", "state", "marks", "work", "runs", "checkpoints", "earlier", "base", "step-5", "pod", "kept",
    "a\nb.log", "run.log\n12 ../../run.json", "x" * 300, "-rf.log", ".hidden.log", "a\\b.log", "run.log ", "rün.log",
    "\ud83d", "MANIFEST.json", "metrics.jsonl", *OURS,
)  # fmt: skip
SIZES = ("0", "5", "18", "4096", "40000", "999999999999999999", "-1", "1e9", "٣", "", " 7", "9" * 5000)


def in_the_laptop(name: str) -> str:
    return f"@laptop/{name}"


NAMES = st.one_of(
    st.sampled_from(GOOD),
    st.sampled_from(GOOD),
    st.sampled_from([f"{above}{name}" for above in ("", "../", "logs/../../", "../../", "logs/") for name in OURS]),
    st.sampled_from([in_the_laptop(name) for name in ("secret", "precious/thesis", "runs/a-1/run.json")]),
    st.builds("/".join, st.lists(st.sampled_from(PARTS), min_size=1, max_size=6)),
    st.text(max_size=20),
)
WELL_FORMED = st.lists(st.tuples(st.sampled_from(("5", "18", "40000", "999999999999999999")), st.sampled_from(GOOD)),
                       min_size=2, max_size=8)  # fmt: skip
LISTINGS = st.one_of(
    WELL_FORMED.map(lambda found: "".join(f"{size} {name}\0" for size, name in found)),
    st.tuples(WELL_FORMED, st.lists(NAMES, min_size=1, max_size=5)).map(
        lambda found: "".join(f"{size} {name}\0" for size, name in (*found[0], *((5, name) for name in found[1])))
    ),
    st.lists(st.tuples(st.sampled_from(SIZES), NAMES), max_size=60).map(
        lambda found: "".join(f"{size} {name}\0" for size, name in found)
    ),
    st.lists(st.tuples(st.sampled_from(SIZES), NAMES), max_size=9).map(
        lambda found: "\n".join(f"{size} {name}" for size, name in found)
    ),
    st.just("5 logs/run.log\0" * 5000),
    st.text(max_size=200),
)
FILES = st.fixed_dictionaries({
    "path": st.one_of(st.just("weights"), NAMES),
    "size": st.sampled_from((len(WEIGHTS), 0, 10**15, -1, 5, "5", None)),
    "sha256": st.sampled_from((hashlib.sha256(WEIGHTS).hexdigest(), "0" * 64, "../x")),
})  # fmt: skip
MANIFESTS = st.fixed_dictionaries({
    "step": st.sampled_from((5, 5, 7, "5")), "phase": st.sampled_from(("base", "../base")),
    "name": st.sampled_from(("base", "../../x")), "fingerprint": st.just(MAKING["fingerprint"]), "schema": st.just(1),
    "about": st.just({}), "published_at": st.just(1.0), "files": st.lists(FILES, max_size=4),
})  # fmt: skip
REPORTS = st.fixed_dictionaries({
    "token": st.just(TOKEN), "state": st.sampled_from(("succeeded", "failed", "x")),
    "reason": st.one_of(st.text(max_size=20), st.just("../../run.json")), "carried": st.just("/etc"),
})  # fmt: skip
CONTENTS = st.one_of(
    st.sampled_from((WEIGHTS, b"@endless", b"@endless", b"", b'{"digest": "x", "result": {}}', b"@gone")),
    MANIFESTS.map(lambda one: json.dumps(one).encode()),
    REPORTS.map(lambda one: json.dumps(one).encode()),
    st.binary(max_size=60),
)
FOLDERS = ("logs", "state", "work", "work/runs/base", "state/marks", "work/checkpoints/base", "incoming", CHECKPOINT)
LINKED = (*GOOD, "state/verdict.json", "cuts.json", "work/checkpoints/base/.step-000000005.draft")
TARGETS = ("secret", "precious", "runs/a-1/run.json", "runs/a-1/kept", "nowhere")
LINKS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(FOLDERS), st.sampled_from(("precious", "runs/a-1/kept"))),
        st.tuples(st.sampled_from(LINKED), st.sampled_from(("secret", "runs/a-1/run.json"))),
        st.tuples(st.sampled_from((*FOLDERS, *LINKED)), st.sampled_from(TARGETS)),
    ),
    max_size=2,
)


@dataclass
class HostilePod:
    """A transport to a machine with drawn answers: each read of a file may return different content."""

    laptop: Path
    listings: list[str]
    contents: list[bytes]
    manifest: bytes
    reads: Iterator[int] = field(default_factory=itertools.count)
    lists: Iterator[int] = field(default_factory=itertools.count)

    def run(self, words: Any, *, stdin: Any = None, timeout_s: float, **more: Any) -> Result:
        text = self.listings[next(self.lists) % len(self.listings)]
        return Result(0, text.replace("@laptop", str(self.laptop)).encode(errors="replace").decode(), "")

    def read(self, path: str | Path, offset: int) -> bytes:
        name = Path(path).name
        if name in ("MANIFEST.json", "ARTIFACT.json"):
            return self.manifest.replace(b"@laptop", os.fsencode(self.laptop))[offset : offset + PIECE]
        if name == "weights":
            return WEIGHTS[offset : offset + PIECE]
        content = self.contents[next(self.reads) % len(self.contents)]
        if content == b"@gone":
            raise FileNotFoundError(str(path))
        return ENDLESS if content == b"@endless" else content[offset : offset + PIECE]

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """Return the content, as a transport that enforces its limit."""
        return self.read(path, 0)


@dataclass
class NextPod(ThisMachine):
    """The machine that receives the files at home: keeps all received content, by path."""

    listing: str
    sent: dict[str, bytes] = field(default_factory=dict)

    def run(self, words: Any, *, stdin: Any = None, timeout_s: float, **more: Any) -> Result:
        if words[-1].startswith(POD_ROOT) and "cat >" in words[2]:
            self.sent[words[-1]] = b"".join(stdin)
            return Result(0, "", "")
        return Result(0, self.listing, "")

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        return b"{}"


def tree(root: Path, without: Path | None = None) -> dict[str, tuple[int, bytes]]:
    """Return all entries below a folder: by path the mode, and the content or the target of the link."""
    found = {}
    for folder, folders, names in os.walk(root):
        folders[:] = [one for one in folders if Path(folder, one) != without]
        for name in (*folders, *names):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            is_link = stat.S_ISLNK(mode)
            content = os.fsencode(os.readlink(path)) if is_link else path.read_bytes() if stat.S_ISREG(mode) else b""
            found[str(path.relative_to(root))] = (mode, content)
    return found


def make_laptop(laptop: Path) -> RunHome:
    """Make a laptop with a secret, a user's work, a second run, and the home of the run with its records."""
    for path in ("precious/thesis", "runs/other-1/run.json", "runs/a-1/kept/code/a", "runs/a-1/kept/data/b"):
        (laptop / path).parent.mkdir(parents=True, exist_ok=True)
        (laptop / path).write_bytes(SECRET)
    (laptop / "secret").write_bytes(SECRET)
    home = RunHome.for_run(RUN, laptop / "runs")
    write_record(home.snapshot.marker, {"token": TOKEN})
    write_record(home.carried, {"carried": [{"name": "data", "file": ""}]})
    write_record(home.receipt, {"run": RUN, "schema": 1})
    home.keep_log.write_text("kept")
    return home


def put_links(home: RunHome, laptop: Path, links: list[tuple[str, str]]) -> None:
    for path, to in links:
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            (home.pod.root / path).parent.mkdir(parents=True, exist_ok=True)
            (home.pod.root / path).symlink_to(laptop / to)


@contextlib.contextmanager
def tight_bounds() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetched_files, "FILE_BYTES", FILE_BYTES)
        patch.setattr(fetched_files, "RUN_BYTES", RUN_BYTES)
        patch.setattr(fetched_files, "READ_BYTES", PIECE)
        yield


def run_refusable(act: Callable[[], object]) -> None:
    """Run an action that may be refused with an error of ours; every other exception is a failure."""
    with contextlib.suppress(SlipwayError, StoreError):
        act()


@MANY
@given(
    listings=st.lists(LISTINGS, min_size=1, max_size=3),
    contents=st.one_of(st.just([b"@endless"]), st.lists(CONTENTS, min_size=1, max_size=6)),
    manifest=st.one_of(MANIFESTS.map(lambda one: json.dumps(one).encode()), st.binary(max_size=60)),
    links=LINKS,
)
def test_a_hostile_pod_changes_only_its_folder_and_only_its_folder_is_sent_or_removed(
    listings, contents, manifest, links
):
    folder = Path(tempfile.mkdtemp(dir=MEMORY))  # each example writes durably
    try:
        with tight_bounds():
            check_hostile_pod(HostilePod(folder / "laptop", listings, contents, manifest), folder / "laptop", links)
    finally:
        shutil.rmtree(folder)


def check_hostile_pod(pod: HostilePod, laptop: Path, links: list[tuple[str, str]]) -> None:
    home, store = make_laptop(laptop), Store(str(laptop.parent / "store"))
    put_links(home, laptop, links)
    before = tree(laptop, without=home.pod.root)
    for _ in range(2):
        run_refusable(lambda: mirror.bring_logs(OP, pod, home))
        run_refusable(lambda: reports.download(OP, pod, home))
        run_refusable(lambda: snapshot.download(OP, pod, home))
        run_refusable(lambda: mirror.bring_artifacts(OP, "store", pod, store, home))
    assert tree(laptop, without=home.pod.root) == before

    held = {path: home.pod.root / path for path in fetched_files.files_below(home.pod.root)}
    assert all(SECRET not in path.read_bytes() for path in held.values())
    counted = [path for name, path in held.items() if name.startswith(("logs/", "state/", "work/runs/"))]
    assert sum(path.stat().st_size for path in counted) <= RUN_BYTES + 3 * FILE_BYTES  # plus reports and marks
    assert all(path.stat().st_size <= FILE_BYTES for path in counted)

    run_refusable(lambda: reports.read_local(OP, home))
    assert [(one.name, one.source) for one in snapshot.carried_of(home)] == [("data", str(home.snapshot.root / "data"))]
    other = NextPod(pod.listings[0])
    run_refusable(lambda: snapshot.restore(OP, other, home, store))
    for place, content in other.sent.items():
        name = os.path.relpath(place, POD_ROOT)
        assert is_of_run(name) and content == held[name].read_bytes()

    snapshot.forget(home)
    after = {name: one for name, one in before.items() if not f"{name}/".startswith("runs/a-1/kept/")}
    assert tree(laptop, without=home.pod.root) == after


@MANY
@given(
    st.lists(
        st.text(st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=20).map(
            lambda name: f"{name}.log"
        ),
        max_size=8,
    )
)
def test_files_with_any_name_are_listed_in_a_real_folder(tmp_path, names):
    forged = ["x\n7 ../../run.json\n.log", "a b.log", "*.log", "-n.log", "$(id).log", "good.log"]
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "pod", "logs")
        logs.mkdir(parents=True)
        (logs.parent / "secret").write_bytes(SECRET)
        (logs / "link.log").symlink_to(logs.parent / "secret")
        for name in (*names, *forged):
            with contextlib.suppress(OSError):  # the name is too long, or exists
                (logs / name).write_bytes(b"said")
        op, home = Op(token=TOKEN, run=RUN, vendor="ssh", address=str(logs.parent)), RunHome(Path(folder, "home"))
        found = [path.name for path in mirror.bring_logs(op, ThisMachine(), home)]
        assert "good.log" in found and all(is_of_run(f"logs/{name}") for name in found)
        assert sorted(tree(home.folder)) == sorted(
            ["pod", "pod/cuts.json", "pod/logs", *(f"pod/logs/{n}" for n in found)]
        )
        assert "cannot be downloaded, because of the names" in fetched_files.read_cuts(home)[0]
