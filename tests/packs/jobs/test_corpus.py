"""Every key and variable of a task file is in the plan or named there, for a vendor and through SkyPilot.

The same walk counts the accepted files of a corpus: `python -m tests.packs.jobs.corpus`.
"""

import json
import os
import re
from dataclasses import replace

import pytest

from infra.agent.environments import cache_folder, environment
from infra.ledger.journal import Journal
from tests.packs.jobs import accounted, corpus
from tests.world import ROOT

pytestmark = [pytest.mark.pack("skypilot"), pytest.mark.usefixtures("as_before")]

IMAGE = "image_id: 'docker:lab/torch:2', accelerators: 'A100:8', ports: 80, labels: {a: b}"
FILES = {
    "image.yaml": f"resources: {{{IMAGE}}}\nrun: x\n",
    "cloud.yaml": "resources: {infra: aws/us-east-1, image_id: ami-1, disk_tier: best, cpus: 4+}\nsetup: a\nrun: x\n",
    "bucket.yaml": "envs: {SHELF: books, TOKEN_COUNT: 3}\nfile_mounts:\n  /a/${SHELF}: {name: $SHELF, store: s3}\n"
    "  ~/b: {source: 's3://shelf/b', mode: MOUNT}\n  ~/c: ./words.txt\nrun: ls\n",
    "cached.yaml": "secrets: {HF_TOKEN: null}\nrun: x\n"
    "file_mounts: {/out: {name: shelf, mode: MOUNT_CACHED, persistent: true}}\n",
    "git.yaml": "name: a\nworkdir: {url: 'https://github.com/x/y.git', ref: main}\nnum_nodes: 2\nrun: x\n",
    "folder.yaml": "workdir: .\nresources: {use_spot: true, max_hourly_cost: 2, memory: 64+, disk_size: 100}\nrun: x\n",
    "tasks.yaml": "name: p\n---\nname: a\nresources: {cpus: 4+}\nrun: x\n---\nresources: {gpus: 'H100:8'}\nrun: y\n",
    "cloud-tasks.yaml": "resources: {infra: gcp}\nrun: x\n---\nresources: {infra: gcp/us-east4, cpus: 2}\nrun: y\n",
    "kinds.yaml": "resources: {accelerators: {'A100:8', 'H100:4'}, network_tier: standard}\nrun: x\n",
    "any.yaml": "resources: {any_of: [{infra: aws, accelerators: L4}, {gpus: T4}]}\nconfig: {aws: {a: b}}\nrun: x\n",
}
FOR_SKYPILOT = {
    "service.yaml": "service: {readiness_probe: /, replicas: 2}\nresources: {ports: 80, cpus: 2}\nrun: x\n",
    "pool.yaml": "pool: {workers: 2}\nresources: {accelerators: H100}\nsetup: a\nrun: x\n",
    "tpu.yaml": "resources: {accelerators: tpu-v5e-8, accelerator_args: {runtime_version: v2}}\nrun: x\n",
    "list.yaml": "file_mounts: {/data: {source: [./a.txt, ./b.txt], name: shelf, mode: COPY}}\nrun: x\n",
    "volumes.yaml": "volumes: {/mnt: shelf}\nresources: {infra: k8s, network_tier: best, gpus: 'T4:0.5'}\nrun: x\n",
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Return the samples of a folder of task files, and a journal."""
    for name in ("RUNPOD_API_KEY", "HOME"):
        monkeypatch.setenv(name, os.environ.get(name) or "a-key-that-is-never-sent")
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "state" / "journal.db"))
    monkeypatch.setenv("SLIPWAY_STORE", str(tmp_path / "store"))
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in {**FILES, **FOR_SKYPILOT}.items():
        (folder / name).write_text(text)
    with Journal.open(tmp_path / "state" / "journal.db") as journal:
        yield {one.name: one for one in corpus.samples(folder, tmp_path / "scratch")}, journal


@pytest.mark.parametrize(
    ("provider", "files"), [("runpod", FILES), ("skypilot", {**FILES, **FOR_SKYPILOT})], ids=["runpod", "skypilot"]
)
def test_every_key_of_a_file_is_in_the_plan_or_named_there(world, provider, files):
    samples, journal = world
    assert {name: corpus.verdicts(samples[name], provider, journal)[0] for name in files} == dict.fromkeys(files, "")


@pytest.mark.parametrize("name", [*FILES])
def test_key_that_a_plan_leaves_out_is_found(world, name):
    samples, journal = world
    why, plan = corpus.verdicts(samples[name], "runpod", journal)
    assert plan is not None and not why
    silent = replace(plan, notes=(), job=replace(plan.job, steps=(), secrets=()))
    found = accounted.missing(samples[name].documents, silent, [], "", samples[name].values)
    top = {re.split(r"[.\[]", one)[0] for one in found}
    tasks = [one for one in samples[name].documents if "run" in one]
    assert {key for one in tasks for key in one} - {"num_nodes"} <= top


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(900)
def test_skypilot_accepts_the_files_and_the_submitted_tasks(world, tmp_path):
    samples, journal = world
    python = environment.ensure("skypilot", ROOT, cache_folder.default_cache(), "", print)
    plans = {name: corpus.verdicts(one, "skypilot", journal)[1] for name, one in samples.items()}
    texts = [(one.text, one.values) for one in samples.values()]
    texts += [(json.dumps(corpus.submission(one, plans[name], tmp_path)), {}) for name, one in samples.items()]
    assert set(corpus.judged(str(python), texts, tmp_path)) == {""} and len(texts) == 2 * len(samples)
