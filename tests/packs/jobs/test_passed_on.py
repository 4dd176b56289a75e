"""A file is passed on to SkyPilot with all keys that SkyPilot carries out."""

import pytest

from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, job_steps, lint, machines, resolve
from packs.jobs.control.refusals import Refusals

pytestmark = pytest.mark.pack("skypilot")

PASSED = (
    "resources: {image_id: 'docker:ubuntu:22.04'}\nrun: x",
    "resources: {infra: aws, image_id: {us-east-1: ami-1}}\nrun: x",
    "resources: {infra: gcp, accelerators: 'tpu-v5e-8', accelerator_args: {runtime_version: v2}}\nrun: x",
    "resources: {accelerators: 'H100:0.5'}\nrun: x",
    "resources: {infra: nebius/eu-north1, accelerators: {H100: 8, H200: 8}, use_spot: true}\nrun: x",
    "resources: {any_of: [{infra: aws}, {infra: kubernetes, image_id: 'docker:a'}]}\nrun: x",
    "resources: {gpus: 'A10G:1', memory: 16384MB}\nrun: x",
    "resources: {cloud: azure, disk_tier: best, ports: [8080], labels: {a: b}}\nrun: x",
    "resources: {infra: gcp, volumes: [{path: /mnt, name: disk}]}\nrun: x",
    "volumes: {/mnt: my-volume}\nrun: x",
    "config: {kubernetes: {provision_timeout: 600}}\nrun: x",
    "event_callback: echo done\nrun: x",
    "managed_secrets: [token]\nrun: x",
    "file_mounts: {/data: {source: 'r2://shelf/books'}}\nrun: x",
    "file_mounts: {/data: {source: 'https://a.blob.core.windows.net/books', mode: MOUNT}}\nrun: x",
    "file_mounts: {/out: {source: /etc/hostname, name: shelf, mode: MOUNT}}\nrun: x",
)
REFUSED = {
    "service: {replicas: 2}\nrun: x": "inv serve.up",
    "pool: {workers: 2}\nrun: x": "inv sweep",
    "volume_mounts: []\nrun: x": "--volume ID",
    "resources: {infra: no-such-cloud}\nrun: x": "unknown cloud",
    "run: x\nrunn: y": "did you mean run",
}


def read(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    refused = Refusals(str(path))
    file = job_file.read(path, refused)
    resolve.check(file, refused, "skypilot", is_rented=True, is_own=False, is_rehearsed=False)
    return file, [one.text for one in refused.found]


@pytest.mark.parametrize("text", PASSED, ids=range(len(PASSED)))
def test_every_key_reaches_skypilot_as_written(tmp_path, text):
    file, refused = read(tmp_path, text)
    assert refused == [] and not [one for one in lint.lint(tmp_path / "job.yaml", "skypilot") if one.is_refused]
    (task,) = file.tasks
    assert machines.wishes(task, MachineSpec(), "skypilot", True, "job").notes == ()
    layout = job_steps.lay_out(job_steps.for_engine(file), is_own=False)
    assert layout.kept == ((),) and layout.mounts == ((),)


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_key_of_other_commands_is_refused(tmp_path, text):
    assert [REFUSED[text] in one for one in read(tmp_path, text)[1]] == [True]
