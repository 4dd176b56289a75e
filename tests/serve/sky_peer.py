"""Program for the python of the `skypilot` environment: SkyPilot's results for the input on stdin, as JSON."""

import itertools
import json
import sys
import tempfile
import types

import sky
from sky.serve import autoscalers, replica_managers, serve_state
from sky.utils import common_utils

PROCESS = common_utils.ProcessStatus


def task(text: str) -> dict:
    """Return the parts of a task from the YAML of a `sky serve up`; raise SkyPilot's exceptions."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        made = sky.Task.from_yaml(file.name)
    spec = made.service
    (resources,) = made.resources
    return {
        "policy": [spec.min_replicas, spec.max_replicas, spec.target_qps_per_replica],
        "delays": [spec.upscale_delay_seconds, spec.downscale_delay_seconds],
        "probe": [spec.readiness_path, spec.initial_delay_seconds, spec.readiness_timeout_seconds],
        "envs": dict(made.envs),
        "mounts": {**(made.file_mounts or {}), **{path: one.source for path, one in made.storage_mounts.items()}},
        "resources": [resources.cpus, resources.memory, resources.disk_size, resources.use_spot, resources.ports],
        "run": made.run,
        "setup": made.setup,
    }


def states() -> list:
    """Return every combination of facts, with SkyServe's state."""
    found = []
    flags = (False, True)
    steps = [one.value for one in PROCESS]
    for launch, down, app, ready, gone, first in itertools.product(
        steps, [None, *steps], flags, flags, flags, (None, -1, 5.0)
    ):
        facts = replica_managers.ReplicaStatusProperty(
            sky_launch_status=PROCESS(launch),
            sky_down_status=None if down is None else PROCESS(down),
            user_app_failed=app,
            service_ready_now=ready,
            preempted=gone,
            first_ready_time=first,
        )
        found.append([launch, down, app, ready, gone, first, facts.to_replica_status().value])
    return found


def targets(text: str, arrivals: list, ticks: list) -> list:
    """Return the autoscaler's target at each tick, with requests that arrive at the ticks."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        scaler = autoscalers.Autoscaler.from_spec("peer", sky.Task.from_yaml(file.name).service)
    now = [0.0]
    autoscalers.time = types.SimpleNamespace(time=lambda: now[0])
    found, told = [], 0
    for tick in ticks:
        now[0] = tick
        upto = told
        while upto < len(arrivals) and arrivals[upto] < tick:
            upto += 1
        scaler.collect_request_information({"timestamps": arrivals[told:upto]})
        told = upto
        scaler._set_target_num_replicas_with_hysteresis()
        found.append(scaler.get_final_target_num_replicas())
    return found


def victims(members: list, count: int) -> list:
    infos = [
        types.SimpleNamespace(
            replica_id=number,
            cluster_name=f"peer-{number}",
            version=1,
            status=serve_state.ReplicaStatus(state),
            is_terminal=False,
        )
        for number, state in members
    ]
    return autoscalers._select_nonterminal_replicas_to_scale_down(count, infos)


if __name__ == "__main__":
    said = json.load(sys.stdin)
    print("\n" + json.dumps(globals()[said["what"]](*said["given"])))
