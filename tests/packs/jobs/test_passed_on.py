"""A file is passed on to SkyPilot with all keys that SkyPilot carries out."""

import pytest

from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, job_steps, lint, machines, resolve
from packs.jobs.control.refusals import Refusals
from tests.world import ROOT

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
    "file_mounts: {/out: {name: shelf, store: r2, mode: MOUNT}}\nrun: x",
    "file_mounts: {/out: {name: shelf, persistent: false}}\nrun: x",
    "file_mounts: {/out: {name: shelf, mode: COPY}}\nrun: x",
    "file_mounts: {/out: {source: [/etc/hostname, /etc/hosts], name: shelf}}\nrun: x",
    "file_mounts: {/out: {source: [/etc/hostname], name: shelf, mode: COPY}}\nrun: x",
)
AS_A_JOB = {  # a section that SkyPilot's own launch leaves out, too
    "service: {replicas: 2}\nresources: {ports: 80}\nrun: x": "service has no effect",
    "service: {readiness_probe: /v1, replica_policy: {min_replicas: 1, max_replicas: 3}}\nrun: y": "inv serve.up FILE",
    "pool: {workers: 2}\nrun: x": "pool has no effect",
    "pool: {workers: 1}\nresources: {cpus: 1+}\nsetup: a\nrun: x": "sky jobs pool apply",
}
REFUSED = {
    "volume_mounts: []\nrun: x": "--volume ID",
    "resources: {infra: no-such-cloud}\nrun: x": "unknown cloud",
    "run: x\nrunn: y": "did you mean run",
    f"workdir: {ROOT}/docs/guides\nsetup: ls\nrun: cd ~/sky_workdir && ls": "remove `cd ~/sky_workdir`",
    f"workdir: {ROOT}/docs/guides\nsetup: ls $HOME/sky_workdir\nrun: ls": "paths relative to the workdir",
    f"workdir: {ROOT}/docs/guides\nrun: |\n  echo '#'; ls \\\n    ~/sky_workdir  # the folder": "paths relative",
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


@pytest.mark.parametrize("text", AS_A_JOB, ids=range(len(AS_A_JOB)))
def test_commands_of_a_service_or_pool_run_as_a_job_and_the_plan_says_so(tmp_path, text):
    file, refused = read(tmp_path, text)
    assert refused == [] and not [one for one in lint.lint(tmp_path / "job.yaml", "skypilot") if one.is_refused]
    (note,) = machines.wishes(file.tasks[0], MachineSpec(), "skypilot", True, "job").notes
    assert AS_A_JOB[text] in note


MOUNTED_HERE = "file_mounts: {/out: {name: shelf, store: r2, persistent: true, mode: MOUNT_CACHED}}\nrun: x"


def test_plan_names_the_keys_of_a_mount_that_slipway_makes_in_a_job_of_an_engine(tmp_path):
    file, _ = read(tmp_path, MOUNTED_HERE)
    (note,) = machines.wishes(file.tasks[0], MachineSpec(), "skypilot", True, "job").notes
    assert "/out: store, persistent: no effect" in note


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_key_of_other_commands_is_refused(tmp_path, text):
    assert [REFUSED[text] in one for one in read(tmp_path, text)[1]] == [True]


@pytest.mark.parametrize(
    "script", ["ls  # it's not ~/sky_workdir\n  ls", "# don't cd ~/sky_workdir\n  ls '# a' # sky_workdir"]
)
def test_comment_may_name_the_folder_of_the_job(tmp_path, script):
    assert read(tmp_path, f"workdir: {ROOT}/docs/guides\nsetup: |\n  {script}\nrun: ls\n")[1] == []
