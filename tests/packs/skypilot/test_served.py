"""Files of services for SkyServe: what SkyServe gets, and when the end of a service is proven.

`test_street_services.py` runs a service through SkyPilot itself; here the answers of SkyPilot are given, since SkyPilot
cannot be made to lose a cluster.
"""

import pytest

from infra.errors import UsageError
from infra.settings import Settings
from packs.skypilot.control import service_file
from packs.skypilot.control.client import SkyPilotAnswer
from packs.skypilot.control.served import Services
from tests.world import ROOT

TOKEN = "sw1-abcdefgh-0123456789abcdef"


class SkyPilot:
    """Answers of SkyPilot about one service."""

    def __init__(self, state="READY", replicas=2):
        self.asked = []
        self.clusters = {f"{TOKEN}-{number}" for number in range(1, replicas + 1)}
        made = [{"id": n, "cluster": f"{TOKEN}-{n}", "state": "READY"} for n in range(1, replicas + 1)]
        self.records = [{"name": TOKEN, "state": state, "endpoint": "", "replicas": made}]

    def read_cached(self, what, *, since, **given):
        return SkyPilotAnswer(self.ask(what, **given), since)

    def ask(self, what, **given):
        self.asked.append((what, *given.values()))
        if what == "services":
            return self.records
        return given["name"] in self.clusters if what == "has_cluster" else None


def test_service_is_gone_without_a_record_and_without_a_cluster_that_a_look_has_seen(tmp_path):
    sky = SkyPilot()
    services = Services(sky, tmp_path)
    pod = services.find(services.id_of(TOKEN))
    assert (pod.state, pod.token, pod.note) == ("running", TOKEN, "SkyServe: READY, 2 of 2 replicas ready")
    sky.records = []
    pod = services.find(pod.pod_id)
    assert pod.state == "ending" and pod.note.endswith(f"SkyPilot still has {TOKEN}-1, {TOKEN}-2")
    services.end(pod.pod_id)
    assert [one for one in sky.asked if one[0] == "end_cluster"] == [("end_cluster", f"{TOKEN}-{n}") for n in (1, 2)]
    sky.clusters = set()
    assert services.find(pod.pod_id) is None


@pytest.mark.parametrize(("state", "ends"), [("READY", [False]), ("FAILED_CLEANUP", [True]), ("SHUTTING_DOWN", [])])
def test_end_of_a_service_is_asked_once_and_purges_only_a_failed_service(tmp_path, state, ends):
    sky = SkyPilot(state)
    Services(sky, tmp_path).end(Services.id_of(TOKEN))
    assert [one[-1] for one in sky.asked if one[0] == "end_service"] == ends
    assert Services(sky, tmp_path).clusters(TOKEN) == [f"{TOKEN}-1", f"{TOKEN}-2"]


def test_failed_service_counts_as_running_because_the_replicas_may_cost_money(tmp_path):
    for state in ("FAILED", "CONTROLLER_FAILED", "FAILED_CLEANUP"):
        assert Services(SkyPilot(state), tmp_path).find(TOKEN).state == "running"


def test_file_goes_over_with_values_and_full_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_SHELL", "hush")
    settings = Settings.load(ROOT, {}, ["MODEL=b"], {"HOME": str(tmp_path)})
    said = {
        "envs": {"MODEL": "a", "KEPT": 1},
        "secrets": {"OF_SHELL": None},
        "workdir": ".",
        "file_mounts": {"~/a": "a"},
    }
    found = service_file.with_full_paths(service_file.with_values(said, tmp_path / "s.yaml", settings))
    assert found["envs"] == {"MODEL": "b", "KEPT": 1} and found["secrets"] == {"OF_SHELL": "hush"}
    assert (found["workdir"], found["file_mounts"]) == (str(tmp_path), {"~/a": f"{tmp_path}/a"})
    with pytest.raises(UsageError, match="s.yaml: NO_VALUE without a value; set the variable in .env, or -e NO_VALUE="):
        service_file.with_values({"secrets": ["NO_VALUE"]}, tmp_path / "s.yaml", settings)


@pytest.mark.parametrize(
    ("section", "wanted"),
    [({}, (1, 1)), ({"replicas": 3}, (3, 3)), ({"replica_policy": {"min_replicas": 0, "max_replicas": 4}}, (0, 4)),
     ({"replica_policy": {"min_replicas": 2, "num_overprovision": 1}}, (2, 3))],
)  # fmt: skip
def test_most_replicas_count_in_the_limit(section, wanted):
    assert service_file.numbers(section) == wanted
