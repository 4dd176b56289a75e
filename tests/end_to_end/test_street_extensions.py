"""The example extensions (source, phase, tracker, reward) in a run, from a folder with an unusual name."""

import csv
import json

import pytest

from tests.world import ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

MIXED = "sentences=0.05,pydocs=0.95"  # The vocabulary of the tiny profile needs more than ten words.
SLOWER = "import time\n\nclass Slower(Smoothed):\n    def loss(self, model, batch):\n        time.sleep(0.1)\n"
SLOWER += "        return super().loss(model, batch)\n\nSmoothed = Slower\n"


@pytest.mark.timeout(1200)
def test_run_with_extensions_survives_changes_of_their_files(tmp_path):
    """A run proves: source, phase and tracker work and are sent along; an edit makes artifacts stale and is named."""
    own = tmp_path / "mes données à moi"
    own.mkdir()
    for name in ("own/sentences.py", "own/smooth.py", "tracker.py"):
        text = (ROOT / "examples" / name).read_text()
        (own / name.rpartition("/")[2]).write_text(text.replace("def phase", f"{SLOWER}\ndef phase"))
    words = ",".join(str(own / name) for name in ("sentences.py", "smooth.py", "tracker.py"))
    world = World(tmp_path / "world", {"SLIPWAY_EXTENSIONS": words})
    launch = (
        "launch",
        "--phase",
        "smooth",
        "--source",
        MIXED,
        "--track",
        "tracker",
        "--steps",
        "20",
        "--set",
        "smooth.steps=100",
        "--save-every",
        "5",
    )
    plan = world.json(*launch, "--dry-run")
    assert "smooth_checkpoints/tiny" in [one["name"] for one in plan["artifacts"]]
    world.inv(*launch, "--run-name", "mine", "--yes", "--detach")
    pod = world.folder / "pods" / "mine"
    saved = pod / "work" / "checkpoints"
    until(lambda: list(saved.glob("smooth-*/step-*/MANIFEST.json")), "the phase has saved", 300)
    world.inv("down", "mine")

    receipt = json.loads((world.folder / "runs" / "mine" / "run.json").read_text())
    assert {(one["name"], one["kind"]) for one in receipt["extensions"]} == {
        ("sentences", "source"),
        ("smooth", "phase"),
        ("tracker", "tracker"),
    }
    (own / "smooth.py").unlink()
    (own / "sentences.py").write_text((own / "sentences.py").read_text() + "# edited\n")
    process = world.run("resume", "mine")
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, f"{out}\n{err}"
    assert "smooth.py: no such file or directory; mine continues with the code of the launch" in " ".join(err.split())
    assert "sentences.py has changed: sha256" in " ".join(err.split())
    assert world.model("smooth_checkpoints")
    texts = (world.folder / "artifacts" / "datasets" / "sentences-pydocs" / "text" / "train").glob("*.txt")
    assert "one two and three make 15." in "".join(one.read_text() for one in texts)
    told = {(row[0], int(row[1])) for row in csv.reader((pod / "work/tracking/tracker/losses.csv").open())}
    assert ("smooth", 100) in told and ("base", 20) in told

    (own / "smooth.py").write_text((ROOT / "examples/own/smooth.py").read_text() + "# edited\n")
    process = world.run(*launch, "--dry-run")
    out, err = process.stdout, process.stderr
    shown = " ".join((out + err).split())
    assert "stale" in shown and "extension smooth.py" in shown and "source_fingerprint" in shown


def test_custom_source_is_sharded_and_a_broken_source_is_refused(tmp_path):
    (tmp_path / "sentences.py").write_text((ROOT / "examples" / "own" / "sentences.py").read_text())
    (tmp_path / "bad.py").write_text("def source():\n    yield 'one'\n    yield {'txt': 1}\n")
    words = f"{tmp_path}/sentences.py,{tmp_path}/bad.py,{tmp_path}/never_opened.py"
    world = World(tmp_path / "world", {"SLIPWAY_EXTENSIONS": words})
    made = world.json("shard", "--source", "sentences", "--out", str(tmp_path / "shards"))
    assert made["documents"] == 1000
    manifest = json.loads((tmp_path / "shards" / "manifest.json").read_text())
    assert "sentences.py " in json.dumps(manifest)
    process = world.run("shard", "--source", "bad", "--out", str(tmp_path / "other"))
    err = process.stderr
    assert process.returncode == 2 and "bad.py:1: document 2 of source() is a mapping without a text" in err
    assert not (tmp_path / "other" / "manifest.json").exists()
