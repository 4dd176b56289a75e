"""Replicas that run the `run` of a service file: the choice, the steps, the secrets, and the limits of the gateway."""

import pytest

from infra.errors import UsageError
from infra.settings import Settings
from serve import own_run, service
from serve.controller import limits_of
from tests.serve.scripted_engine import ROOT

PAGES = {"service": {"readiness_probe": "/alive", "replicas": 1}, "resources": {"ports": 8123}, "run": "serve 8123"}


def made(**more):
    return service.parse("pages", {**PAGES, **more})


@pytest.mark.parametrize(
    ("engine", "model", "own_model", "is_wanted"),
    [("", "", "", True), ("run", "", "hf://a/b", True), ("vllm", "", "", False), ("", "sft", "", False),
     ("", "", "hf://a/b", False)],
)  # fmt: skip
def test_run_of_a_file_is_the_engine_without_any_model(engine, model, own_model, is_wanted):
    assert own_run.is_wanted(made(), engine, model, own_model) is is_wanted
    assert not own_run.is_wanted(made(run=""), "", "", "")


def test_steps_are_setup_and_run_with_the_variables_of_the_file(tmp_path):
    said = made(setup="pip install x", envs={"A": 1, "HF_TOKEN": None}, workdir=str(tmp_path))
    first, last = own_run.steps(said, "engine", is_near=False)
    assert (first.name, last.name, first.is_setup, last.max_restarts) == ("setup", "engine", True, 0)
    assert (last.config["text"], last.config["envs"], last.config["workdir"]) == ("serve 8123", {"A": "1"}, "workdir")
    (sent,) = own_run.carried(said)
    assert (sent.name, sent.source) == ("workdir", str(tmp_path))
    assert [one.name for one in own_run.steps(made(), "engine", is_near=True)] == ["engine"]
    assert own_run.carried(made()) == ()


def test_secrets_come_from_the_settings_and_the_shell_and_never_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_TOKEN", "from the shell")
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path), "HF_TOKEN": "hf_" + "1" * 20})
    said = made(envs={"HF_TOKEN": None}, secrets=["LAB_TOKEN"])
    assert own_run.secrets(said, settings) == {"HF_TOKEN": "hf_" + "1" * 20, "LAB_TOKEN": "from the shell"}
    with pytest.raises(UsageError, match="secrets: NO_KEY has no value; set the variable in .env"):
        own_run.check(made(secrets={"NO_KEY": None}), True, settings)
    for wrong, why in (({"A_KEY": "x"}, "write no value"), ({"A=": None}, "not the name of a variable")):
        with pytest.raises(UsageError, match=why):
            made(secrets=wrong)


def test_file_that_no_replica_can_run_is_refused(tmp_path):
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    own_run.check(made(service={"replicas": 3}), False, settings)
    for said, why in (
        (made(service={"replicas": 3}), "would listen on port 8123; add --replicas 1"),
        (made(file_mounts={"~/a": "./a"}), "fetch the files in `setup`"),
        (made(run=""), "add the line `run: COMMAND`"),
    ):
        with pytest.raises(UsageError, match=why):
            own_run.check(said, True, settings)


def test_one_replica_runs_on_this_machine():
    told = []
    policy = {"min_replicas": 2, "max_replicas": 4, "target_qps_per_replica": 1.0}
    for section in ({"replicas": 3}, {"replica_policy": policy}):
        document = {**PAGES, "service": {"readiness_probe": "/alive", **section}}
        one = own_run.with_one_replica(document, service.parse("x", document), told.append)
        assert one["service"] == {"readiness_probe": "/alive", "replicas": 1} and "port 8123" in told.pop()
    assert own_run.with_one_replica(PAGES, service.parse("x", PAGES), told.append) is PAGES and told == []


def test_gateway_forwards_every_route_only_for_a_program_of_the_user():
    assert limits_of(made(), any_route=True).any_route and not limits_of(made()).any_route
