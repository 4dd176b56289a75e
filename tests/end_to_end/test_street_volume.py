"""A pod manifest with a command and a volume, launched at a rehearsed RunPod: four stages on the volume, by `RUN_*`.

The volume outlives the pod: a second pod takes the shards and the tokenizer of the first pod.
"""

import contextlib
import random

import pytest

from infra.rehearsal import attach
from tests.end_to_end.test_street_market import KEYS, Rehearsed
from tests.world import ROOT

pytestmark = [
    pytest.mark.pack("jobs"),
    pytest.mark.nightly,  # Three minutes: a pod creates environments, and trains.
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(900),
]
VOLUME, NAME = "vol-rehearsal", "runpod-tiny"
WORDS = "river boats drift slowly under willow branches until evening comes barley".split()
MANIFEST = ROOT / "infra" / "runpod-pod.yaml"


def test_manifest_trains_on_the_volume_and_a_second_pod_reuses_its_artifacts(tmp_path):
    """The file runs as shipped: the volume id is typed, and the sizes come from the file's own variables."""
    user = Rehearsed(tmp_path, {**KEYS, "SLIPWAY_BOOT_S": "600"})
    attach.start(user.base, speed=20)
    try:
        volume = user.world.folder / "volumes" / "runpod" / VOLUME
        volume.mkdir(parents=True)
        chance = random.Random(1)
        lines = (" ".join(chance.choice(WORDS) for _ in range(30)) for _ in range(200))
        (volume / "raw_corpus.txt").write_text("".join(f"{line}\n" for line in lines))
        profile = volume / "toy.yaml"  # 200 lines yield few words.
        profile.write_text("profile: tiny\nmodel: {vocab_size: 300}\n")
        knobs = {
            "RUN_EXPERIMENT": NAME,
            "RUN_CONFIG": profile,
            "RUN_INPUT": volume / "raw_corpus.txt",
            "SHARD_LINES": 50,
            "OMP_NUM_THREADS": 1,
        }
        for run, shard in (("first", 1), ("second", 0)):
            given = [f"--env={name}={value}" for name, value in {**knobs, "RUN_SHARD": shard}.items()]
            user.inv("launch", str(MANIFEST), "--volume", VOLUME, *given, "--rehearse", "--run-name", run, "--yes")
            log = (user.store / "logs" / run / "run.log").read_text()
            if run == "first":
                stages = [
                    "directories: 6 new folders",
                    "shards: 5 shards, 200 lines",
                    "tokenizer: made, 300 ids",
                    "config: ",
                    "TensorBoard: port 6006",
                    "training: tokens, base",
                    "Next: ",
                ]
                assert [log.index(one) for one in stages] == sorted(log.index(one) for one in stages)
                shards = {path: path.stat().st_mtime_ns for path in (volume / "datasets" / "train" / NAME).iterdir()}
                assert len(shards) > 3
            else:
                assert all(one in log for one in ("reusing 5 shards", "tokenizer: reused", "everything is here"))
                assert {path: path.stat().st_mtime_ns for path in shards} == shards
        made = volume / "runs" / NAME
        assert {"training.yaml", "training.toml", "artifacts", "tensorboard"} <= {one.name for one in made.iterdir()}
        (events,) = made.glob("tensorboard/base/events.out.tfevents.*")
        assert events.stat().st_size > 1000
        assert (volume / "transformer" / "tasks.py").is_file()  # The code is kept on the volume, too.
        assert user.truth()["billing"] == 0
    finally:
        with contextlib.suppress(attach.NoWorld):
            user.inv("rehearse", "--stop")
