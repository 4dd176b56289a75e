"""The snapshot of a run at home, and the files for a new pod, on folders of this machine."""

import hashlib
import json
from pathlib import Path

import pytest

from infra.agent.job import Job
from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.sync import snapshot
from infra.transport.protocol import ConnectionLost, ThisMachine
from store.artifacts.artifacts import Store

pytestmark = pytest.mark.process


def pod(folder: Path) -> Op:
    return Op(token="sw1-test", run="a-1", vendor="ssh", address=str(folder), job=Job("", "", ()).to_json())


def save(root: Path, step: int, weights: str) -> Path:
    folder = root / "work" / "checkpoints" / "base" / f"step-{step:09d}"
    folder.mkdir(parents=True)
    (folder / "weights").write_text(weights)
    sha = hashlib.sha256(weights.encode()).hexdigest()
    files = [{"path": "weights", "size": len(weights), "sha256": sha}]
    (folder / "MANIFEST.json").write_text(json.dumps({"step": step, "files": files}))
    return folder


def figures(root: Path) -> Path:
    return root / "work" / "runs" / "base" / "metrics.jsonl"


def write_figures(root: Path, steps: int) -> None:
    figures(root).parent.mkdir(parents=True, exist_ok=True)
    figures(root).write_text("".join(f'{{"step": {step}}}\n' for step in range(1, steps + 1)))


class BreaksAt(ThisMachine):
    """A transport that loses the connection at the request for a file of this name."""

    name = ""

    def read(self, path, offset):
        if Path(path).name == self.name:
            raise ConnectionLost("cut off")
        return super().read(path, offset)


def steps_at(root: Path) -> list[str]:
    return sorted(one.name for one in (root / "work" / "checkpoints" / "base").iterdir())


def test_a_checkpoint_at_home_has_all_earlier_figures(tmp_path):
    there, home, way = tmp_path / "there", tmp_path / "home", BreaksAt()
    for step in (4, 8):
        save(there, step, f"weights {step}")
        write_figures(there, step)
        way.name = "metrics.jsonl"
        with pytest.raises(ConnectionLost):
            snapshot.download(pod(there), way, RunHome(home))
        way.name = ""
        if step == 4:
            assert list(home.rglob("step-*")) == []
            snapshot.download(pod(there), way, RunHome(home))
        assert [one for one in steps_at(home / "pod") if not one.startswith(".")] == ["step-000000004"]
        assert len(figures(home / "pod").read_text().splitlines()) == 4
    snapshot.download(pod(there), way, RunHome(home))
    assert steps_at(home / "pod") == ["step-000000008"]
    assert len(figures(home / "pod").read_text().splitlines()) == 8


def test_a_new_pod_gets_the_snapshot_and_no_old_files_of_its_machine(tmp_path):
    first, home, second = tmp_path / "first", tmp_path / "home", tmp_path / "second"
    save(first, 8, "ours")
    write_figures(first, 8)
    snapshot.download(pod(first), ThisMachine(), RunHome(home))
    (home / "pod" / "work" / "checkpoints" / "base" / ".step-000000012.draft").mkdir()
    (home / "pod" / "work" / "checkpoints" / "base" / ".step-000000012.draft" / "weights").write_text("half")
    for step, weights in ((4, "older"), (8, "another's"), (12, "newer, and never home")):
        save(second, step, weights)
    write_figures(second, 12)
    snapshot.restore(pod(second), ThisMachine(), RunHome(home), Store(str(tmp_path / "store")))
    aside = [f".aside-sw1-test-step-{step:09d}" for step in (8, 12)]
    assert steps_at(second) == sorted([*aside, "step-000000004", "step-000000008"])
    assert (second / "work" / "checkpoints" / "base" / "step-000000008" / "weights").read_text() == "ours"
    assert len(figures(second).read_text().splitlines()) == 8


def test_a_checkpoint_on_the_machine_is_not_sent_again(tmp_path):
    there, home = tmp_path / "there", tmp_path / "home"
    weights = save(there, 8, "ours") / "weights"
    snapshot.download(pod(there), ThisMachine(), RunHome(home))
    before = weights.stat()
    snapshot.restore(pod(there), ThisMachine(), RunHome(home), Store(str(tmp_path / "store")))
    assert (weights.stat().st_ino, weights.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert steps_at(there) == ["step-000000008"]
