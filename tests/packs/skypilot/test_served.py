"""Files of services for SkyServe: what SkyServe gets, and when the end of a service is proven.

`test_street_services.py` runs a service through SkyPilot itself; here the answers of SkyPilot are given, since SkyPilot
cannot be made to lose a cluster.
"""

import json

import pytest
import yaml

from flows.services import engine_services
from flows.specs.service import ServeSpec
from infra import strict_yaml
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.records import Plan, Request
from infra.runs import pods
from infra.settings import Settings
from packs.skypilot.control import service_file
from packs.skypilot.control.client import SkyPilotAnswer
from packs.skypilot.control.managed_jobs import ManagedJobs
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
    given = ["MODEL=b", "EXTRA=1", "EMPTIED=", "AN_API_KEY=k"]
    settings = Settings.load(ROOT, {}, given, {"HOME": str(tmp_path)})
    file = tmp_path / "s.yaml"
    file.write_text(
        "envs: {MODEL: a, KEPT: 1, EMPTIED: full, RELEASE: 2026-03-14, STAGE: 1.90, AT: 2026-03-14 10:00:00}\n"
        "secrets: {OF_SHELL: }\nworkdir: .\nfile_mounts: {~/a: a}\n"
        "resources: {labels: {since: 2026-01-02}}\n"
    )

    def filled(file):
        return service_file.with_full_paths(
            service_file.with_values(strict_yaml.documents(file)[0].value, tmp_path / "s.yaml", settings)
        )

    found = filled(file)
    assert found["resources"] == {"labels": {"since": "2026-01-02"}}
    assert json.loads(json.dumps(found))["envs"] == {
        "MODEL": "b",
        "KEPT": "1",
        "EMPTIED": "",
        "RELEASE": "2026-03-14",
        "STAGE": "1.9",
        "AT": "2026-03-14 10:00:00",
        "EXTRA": "1",
    }
    assert found["secrets"] == {"OF_SHELL": "hush", "AN_API_KEY": "k"}
    assert (found["workdir"], found["file_mounts"]) == (str(tmp_path), {"~/a": f"{tmp_path}/a"})
    with pytest.raises(UsageError, match="s.yaml: NO_VALUE without a value; set the variable in .env, or -e NO_VALUE="):
        file.write_text("secrets: [NO_VALUE]")
        filled(file)


@pytest.mark.parametrize(
    ("section", "wanted"),
    [({}, (1, 1)), ({"replicas": 3}, (3, 3)), ({"replica_policy": {"min_replicas": 0, "max_replicas": 4}}, (0, 4)),
     ({"replica_policy": {"min_replicas": 2, "num_overprovision": 1}}, (2, 3)),
     ({"replica_policy": {"min_replicas": 2, "max_replicas": 4, "dynamic_ondemand_fallback": True}}, (2, 8)),
     ({"replica_policy": {"min_replicas": 2, "base_ondemand_fallback_replicas": 1}}, (2, 2))],
)  # fmt: skip
def test_most_replicas_count_in_the_limit(section, wanted):
    assert service_file.numbers(section) == wanted


HEAD = " INFRA   INSTANCE   vCPUs   Mem(GB)   GPUS   COST ($)   CHOSEN\n"
OWN = " Kubernetes (home)   4CPU   4   16   L4:1   0.00   ✔\n"
MARKETS = {  # the optimizer's rows; own or not and USD per hour and replica in the limits
    "own": (OWN, "", True, 0),
    "paid": (" AWS (us-east-1)   g6   4   16   L4:1   0.80   ✔\n", "", False, 0.8),
    "own, then paid": (OWN, " AWS (us-east-1)   g6   4   16   L4:1   0.80\n", False, 0.8),
    "paid, then dearer": (
        " AWS (a)   g6   4   16   L4:1   0.80   ✔\n",
        " GCP (b)   g2   4   16   L4:1   0.95\n",
        False,
        0.95,
    ),
    "paid, then own": (
        " AWS (a)   g6   4   16   L4:1   0.80   ✔\n",
        " SSH (b)   -   4   16   L4:1   0.00\n",
        False,
        0.8,
    ),
}


class Optimizer:
    """The optimizer's answers: one table for spot machines, and one for other machines."""

    def __init__(self, table, on_demand=""):
        self.tables = {True: table, False: on_demand or table}

    def ask(self, what, *, task):
        if what == "price":
            said = task.get("resources", {})
            ways = [said, *said.get("any_of", ())]
            return HEAD + self.tables[any(one.get("use_spot") for one in ways)]
        return None


def engine_of(tmp_path, *tables):
    return ManagedJobs(Optimizer(*tables), tmp_path)


@pytest.mark.parametrize("market", MARKETS)
def test_limits_count_the_dearest_machine_that_skypilot_may_rent(tmp_path, market):
    chosen, others, is_own, usd = MARKETS[market]
    engine, told = engine_of(tmp_path, chosen + others), []
    (offer,) = engine.quote(Plan(target="", store="", artifacts=(), job=None, request=Request(run="a")), told.append)
    assert (offer.is_own, offer.micro_usd_per_hour) == (is_own, usd * 1e6)
    assert any("the dearest machine" in one for one in told) == (market in ("own, then paid", "paid, then dearer"))
    if not is_own:
        with pytest.raises(UsageError, match="no limit would end this pod"):
            pods.check_end(offer, Limits())


@pytest.mark.parametrize("typed", ["", "5"])
@pytest.mark.parametrize("market", MARKETS)
def test_service_has_a_limit_unless_all_its_machines_are_own(tmp_path, market, typed):
    chosen, others, is_own, usd = MARKETS[market]
    file = tmp_path / "talk.yaml"
    file.write_text("service: {replicas: 2}\nresources: {ports: 8080}\nrun: serve\n")
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    spec = ServeSpec(config=str(file), spend_limit=typed)
    engine, told = engine_of(tmp_path, chosen + others), []
    with Journal.open(tmp_path / "journal.db") as journal:
        planned = engine_services.plan(spec, engine, journal, settings, told.append)
    limit = int(typed) * 10**6 if typed else None if is_own else 150 * 10**6
    assert (planned.limits.spend_micro_usd, planned.rate) == (limit, 2 * usd * 1e6)
    assert planned.service.offer.is_own == is_own


@pytest.mark.parametrize(
    ("policy", "rate"),
    [
        ({}, 4 * 0.3),
        ({"base_ondemand_fallback_replicas": 1}, 4 * 0.9),
        ({"base_ondemand_fallback_replicas": 1, "dynamic_ondemand_fallback": True}, 8 * 0.9),
    ],
)
@pytest.mark.parametrize("resources", [{"use_spot": True}, {"any_of": [{"infra": "aws", "use_spot": True}]}])
def test_limit_counts_on_demand_replicas_of_a_service_with_a_fallback(tmp_path, policy, rate, resources):
    document = {
        "service": {"replica_policy": {"min_replicas": 2, "max_replicas": 4, "target_qps_per_replica": 1, **policy}}
    }
    file = tmp_path / "talk.yaml"
    file.write_text(yaml.safe_dump({**document, "resources": {**resources, "ports": 8080}, "run": "serve"}))
    engine = engine_of(
        tmp_path, " AWS (a)   g6[Spot]   4   16   L4:1   0.30   ✔\n", " AWS (a)   g6   4   16   L4:1   0.90   ✔\n"
    )
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    with Journal.open(tmp_path / "journal.db") as journal:
        planned = engine_services.plan(ServeSpec(config=str(file)), engine, journal, settings, lambda _: None)
    assert planned.rate == round(rate * 1e6)
