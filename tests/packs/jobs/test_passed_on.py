"""With `--provider skypilot`, a file is passed on with all keys that SkyPilot carries out."""

from dataclasses import fields

import pytest
import yaml

from infra.errors import UsageError
from infra.records import Request
from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, job_steps, lint, machines, resolve
from packs.jobs.control.refusals import Refusals
from packs.skypilot.control import task as sky_task

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
    said = yaml.safe_load(text)
    typed = {one.name: getattr(MachineSpec(), one.name) for one in fields(MachineSpec)}
    keys, _ = sky_task.overlaid(said.get("resources", {}), typed, Request(run="a"))
    assert keys == said.get("resources", {})
    assert set(said) - {"run"} <= {*sky_task.ENGINE_KEYS}
    sky_task.check(said, 1, False, "job")


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_key_of_other_commands_is_refused(tmp_path, text):
    assert [REFUSED[text] in one for one in read(tmp_path, text)[1]] == [True]


def test_alternative_that_a_cloud_lacks_does_not_refuse_the_others():
    ways = {"any_of": [{"infra": "shadeform"}, {"infra": "aws"}], "use_spot": True}
    sky_task.check({"resources": ways}, 1, False, "job")
    with pytest.raises(UsageError, match="no spot machines on shadeform"):
        sky_task.check({"resources": {**ways, "any_of": ways["any_of"][:1]}}, 1, False, "job")


def test_flag_overrides_the_alias_of_its_key():
    typed = {one.name: getattr(MachineSpec(gpu="H100", num_gpus=8), one.name) for one in fields(MachineSpec)}
    keys, _ = sky_task.overlaid({"gpus": "A100:1", "memory": "8+"}, typed, Request(run="a", gpu="H100", num_gpus=8))
    assert keys == {"accelerators": "H100:8", "memory": "8+"}
