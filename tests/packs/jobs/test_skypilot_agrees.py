"""Sixty job files in the style of SkyPilot's examples: Slipway and SkyPilot both accept them, or both refuse them.

Slipway refuses some files of SkyPilot on purpose; these files are listed under Slipway's message.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from infra.agent.environments import cache_folder, environment
from infra.errors import UsageError
from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, machines
from tests.world import ROOT

pytestmark = pytest.mark.pack("skypilot")

VALIDATOR = Path(__file__).with_name("sky_validator.py")
BOTH_TAKE = (
    "run: echo hi",
    "name: minimal\nsetup: echo a\nrun: |\n  echo b\n  nvidia-smi",
    "resources: {accelerators: 'H100:8'}\nrun: x",
    "resources: {accelerators: {A100: 1, A100-80GB: 1, H100: 1}}\nrun: x",
    "resources: {accelerators: ['H100:8', 'A100:8']}\nrun: x",
    "resources: {accelerators: V100}\nrun: x",
    "resources: {infra: runpod, accelerators: 'A100-80GB:1'}\nrun: x",
    "resources: {infra: 'slurm/cluster/gpu', cpus: 4}\nrun: x",
    "resources: {infra: ssh/my-pool}\nrun: x",
    "resources: {cpus: 16+, memory: 128+, disk_size: 100}\nrun: x",
    "resources: {cpus: 4, memory: 4x}\nrun: x",
    "resources: {disk_size: 500GB}\nrun: x",
    "resources: {disk_tier: best}\nrun: x",
    "resources: {network_tier: best}\nrun: x",
    "resources: {use_spot: true, job_recovery: FAILOVER}\nrun: x",
    "resources: {job_recovery: {strategy: EAGER_NEXT_REGION, max_restarts_on_errors: 3}}\nrun: x",
    "resources: {job_recovery: {max_restarts_on_errors: 2, recover_on_exit_codes: [33, 34]}}\nrun: x",
    "resources: {ports: 8080}\nrun: x",
    "resources: {ports: [8080, 9000-9010]}\nrun: x",
    "resources: {labels: {team: a}}\nrun: x",
    "resources: {max_hourly_cost: 3.5}\nrun: x",
    "resources: {autostop: 10}\nrun: x",
    "resources: {autostop: {idle_minutes: 10, down: true}}\nrun: x",
    "resources: {autostop: true}\nrun: x",
    "resources: {any_of: [{infra: runpod}, {infra: lambda}]}\nrun: x",
    "resources: {ordered: [{accelerators: 'H100:1'}, {accelerators: 'A100:1'}]}\nrun: x",
    "num_nodes: 2\nresources: {accelerators: 'H100:8'}\nrun: torchrun x.py",
    "envs: {A: text, B: 1, C: 1.5, D: true}\nrun: x",
    "secrets: {TOKEN: abc}\nrun: x",
    "envs: {A: 1}\nsecrets: {TOKEN: abc}\nrun: x",
    "workdir: .\nrun: x",
    "workdir: {url: 'https://github.com/x/y.git', ref: main}\nrun: x",
    "file_mounts: {~/data: .}\nrun: x",
    "file_mounts: {~/ckpt: {name: my-bucket-of-checkpoints, mode: MOUNT_CACHED}}\nrun: x",
    "config: {nvidia_gpus: {disable_ecc: true}}\nrun: x",
    "setup: pip install x\nresources: {cpus: 2}\nrun: python -c 'print(1)'",
    "resources: {instance_type: p4d.24xlarge}\nrun: x",
    "resources: {gpus: 'L40S:2'}\nrun: x",
    "resources: {memory: 16384MB}\nrun: x",
    "name: 7b-chat\nrun: x",
    "envs: {SKYPILOT_SHELF: a}\nrun: x",
    "resources: {priority: 10}\nrun: x",
    "resources: {image_id: 'docker:ubuntu:22.04'}\nrun: x",
)
BOTH_REFUSE = (
    "runn: x\nrun: y",
    "run: x\ngpu: H100",
    "run: x\nresources: {acelerators: H100}",
    "run: x\nresources: {infra: no-such-cloud}",
    "run: x\nnum_nodes: two",
    "run: x\nnum_nodes: 0",
    "run: x\nnum_nodes: -1",
    "run: x\nnum_nodes: 1.5",
    "run: [a, b]",
    "run: x\nsetup: {a: b}",
    "run: x\nenvs: {A=B: 1}",
    "run: x\nenvs: {1A: 1}",
    "run: x\nenvs: [A, B]",
    "run: x\nenvs: {A: }",
    "run: x\nresources: {any_of: 5}",
    "run: x\nresources: {max_hourly_cost: -1}",
    "run: x\nresources: {job_recovery: {max_restarts_on_errors: -1}}",
    "run: x\nresources: {job_recovery: {recover_on_exit_codes: 300}}",
    "run: x\nresources: {use_spot: perhaps}",
    "run: x\nresources: {labels: [a]}",
    "run: x\nfile_mounts: {/a: {name: b-u-c-k-e-t, mode: MONT}}",
    "run: x\nfile_mounts: [a]",
    "run: x\nresources: {network_tier: fast}",
)
WE_REFUSE = {
    "resources: {cpus: 2}": "neither `run` nor `setup`",
    "volumes: {/mnt: my-volume}\nrun: x": "add --volume ID with the volume of a vendor",
    "event_callback: echo\nrun: x": "Slipway makes no callbacks",
    "run: x\nworkdir: /no/such/folder": "the folder /no/such/folder does not exist",
    "run: x\nfile_mounts: {/a: /no/such/file}": "cannot be read",
}


def our_refusal(path, text: str) -> str:
    path.write_text(text)
    try:
        for task in job_file.load(path).tasks:
            machines.wishes(task, MachineSpec(), "skypilot", True, "job")
            machines.recovery_of(task)
            if None in task.envs.values():
                return "no value"
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.pack("slurm")
def test_slipway_accepts_and_refuses_as_documented(tmp_path):
    assert len((*BOTH_TAKE, *BOTH_REFUSE)) >= 60
    path = tmp_path / "job.yaml"
    assert [text for text in BOTH_TAKE if our_refusal(path, text)] == []
    assert [text for text in BOTH_REFUSE if not our_refusal(path, text)] == []
    assert [text for text in WE_REFUSE if WE_REFUSE[text] not in our_refusal(path, text)] == []


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_skypilot_accepts_and_refuses_the_same_files(tmp_path):
    python = environment.ensure("skypilot", ROOT, cache_folder.default_cache(), "", print)
    environ = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    texts = (*BOTH_TAKE, *BOTH_REFUSE, *WE_REFUSE)
    done = subprocess.run(
        [str(python), str(VALIDATOR)],
        cwd=tmp_path,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=environ,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    said = dict(zip(texts, json.loads(done.stdout.splitlines()[-1]), strict=True))
    assert {text: said[text] for text in (*BOTH_TAKE, *WE_REFUSE) if said[text]} == {}
    assert [text for text in BOTH_REFUSE if not said[text]] == []
