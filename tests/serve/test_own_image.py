"""The container image of a file with its own `run`: booted by some vendors, or run by Podman or Docker."""

import contextlib
import os
from dataclasses import replace

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra import strict_yaml
from infra.agent.execution import container
from infra.errors import NoOffer, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.runs import launch
from infra.settings import Settings
from serve import own_image, own_run, revision, service
from serve.policy import service_state
from serve.policy.service_state import Member, Version, WantedService
from serve.replicas import placement
from serve.replicas.replica_pod import ReplicaLauncher
from tests.infra.market.test_boot import settings_of
from tests.infra.rehearsal.worlds import world

FILE = """\
service: {readiness_probe: /health, replicas: 1}
resources: {image_id: 'docker:vllm/vllm-openai:v0.9', ports: 8000, accelerators: 'L4:1'}
run: vllm serve some/model --port 8000
"""
IMAGE = "vllm/vllm-openai:v0.9"


RESOURCES = {"image_id": f"docker:{IMAGE}", "ports": 8000}


def made(**resources):
    said = {**RESOURCES, **resources}
    return service.parse("talk", {"service": {"replicas": 1}, "resources": said, "run": "x"})


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Return the path of a `podman` on PATH, without the file."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "podman"


@pytest.mark.parametrize(
    ("candidates", "booting", "containing"),
    [
        (("runpod",), ("runpod",), ()),
        (("runpod", "shadeform", "lium"), ("runpod", "lium"), ("shadeform",)),
        (("ssh", "runpod", "shadeform"), ("runpod",), ("ssh", "shadeform")),
        (("local",), (), ("local",)),
        (("of-an-extension", "lium"), ("lium",), ()),
    ],
)
def test_replicas_run_an_image_in_the_way_of_the_provider(podman, candidates, booting, containing):
    podman.touch(0o755)
    ways = own_image.ways(made(), candidates, is_rehearsed=False)
    assert {(one.candidates, one.booted, one.contained) for one in ways} == {
        one for one in ((booting, IMAGE, ""), (containing, "", IMAGE)) if one[0]
    }
    usable = own_image.able(made(), candidates, is_rehearsed=False)
    left = [one for one in candidates if one not in usable]
    assert set(usable) == {*booting, *containing}
    said = own_image.notes(made(), candidates, is_rehearsed=False)
    assert len(said) == len(ways) + len(left) and all(IMAGE in one for one in said)
    for one, text in zip(ways, said, strict=False):
        assert ("boots" if one.booted else "in a container of") in text
        assert len(ways) == 1 or text.startswith(f"{', '.join(one.candidates)}: image_id: ")
        (step,) = own_run.steps(made(), "engine", False, one.contained)
        assert (step.config["image"], step.config["own_home"]) == (one.contained, bool(one.contained))
    assert not left or said[-1].startswith("of-an-extension: left out: image_id: machines of of-an-extension run no")


@pytest.mark.process
def test_replicas_go_to_machines_of_each_way_own_machines_first(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "podman").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with world(tmp_path / "world") as running:
        settings = settings_of(running, tmp_path)
        (tmp_path / "pools.yaml").write_text("lab: {hosts: [{ip: 127.0.0.1, port: 9, gpu: L4, num_gpus: 1}]}\n")
        settings, told = replace(settings, pools=tmp_path / "pools.yaml"), []
        request = placement.request_of(made(accelerators="L40S:1"), "talk-0")

        def find(*candidates, request=request):
            ways = own_image.ways(made(), candidates, is_rehearsed=False)
            return placement.find_in_ways(ways, request, False, settings, told.append)

        ((way, offers),) = find("ssh", "runpod")  # no machine of the pool answers
        assert (way.booted, {one.provider for one in offers}) == (IMAGE, {"runpod"})
        assert any(one.startswith("talk-0: left out: no machine for a replica on ssh: ssh: ") for one in told)
        with pytest.raises(NoOffer, match="on ssh: "):
            find("ssh")
        found = find("shadeform", "runpod")
        first = [offers[0].micro_usd_per_hour for _, offers in found]
        assert len(found) == 2 and first == sorted(first)
        (way, (offer,)), (other, _) = find("runpod", "local", request=replace(request, gpu="", num_gpus=0))
        assert (way.contained, offer.provider, other.booted) == (IMAGE, "local", IMAGE)
        document = {"service": {"replicas": 1}, "resources": RESOURCES | {"accelerators": "L40S:1"}, "run": "x"}
        version = Version(number=1, document=document, engine="run", provider="", model="")
        monkeypatch.setattr(launch, "start", lambda plan, offers, *more: (plan, offers))
        launcher = ReplicaLauncher("talk", settings, told.append, b"seed")
        plan, offers = launcher.launch(version, Member(number=1, version=1, run="talk-1"))
        way, wanted = find(*placement.candidates("", settings))[0]
        assert (plan.request.image, plan.job.steps[-1].config["image"]) == (way.booted, way.contained)
        assert [one.offer_id for one in offers] == [one.offer_id for one in wanted]
        nowhere = replace(request, max_micro_usd_per_hour=1)
        with pytest.raises(NoOffer, match="(?s)on shadeform: .*on runpod: |on runpod: .*on shadeform: "):
            find("shadeform", "runpod", request=nowhere)


def test_login_at_a_registry_leaves_out_vendors_with_the_reason_and_the_service_cannot_rent(tmp_path):
    document = {"service": {"replicas": 1}, "resources": {"image_id": f"docker:{IMAGE}"}, "run": "x"}
    login, environ = {"envs": dict.fromkeys(container.LOGIN, "a")}, {"HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 32}
    settings = replace(Settings.load(tmp_path, environ=environ), pools=tmp_path)
    for more, rents in ((login, False), ({}, True)):
        version = Version(number=1, document={**document, **more}, engine="run", provider="", model="")
        said = own_image.notes(version.service, placement.candidates("", settings), is_rehearsed=False)
        assert revision.may_rent(version, settings) is rents
        left = [one for one in said if one.startswith("runpod: left out: image_id: vendors boot")]
        assert left == ([] if rents else said[1:])


def test_image_of_an_alternative_counts_and_an_image_of_a_cloud_does_not(podman):
    assert own_image.image_of(made(image_id=None, any_of=[{"infra": "aws"}, {"image_id": "docker:a:1"}])) == "a:1"
    plain = made(image_id="ami-1")
    assert own_image.ways(plain, ("local", "runpod"), False) == (own_image.ImageUse(candidates=("local", "runpod")),)
    assert [key for key, _ in placement.ignored_settings(plain, is_own_run=True)] == ["resources.image_id"]
    assert placement.ignored_settings(made(), is_own_run=True) == []
    assert [key for key, _ in placement.ignored_settings(made())] == ["resources.image_id"]


def test_image_that_no_machine_runs_is_refused_with_the_next_step(podman):
    for candidates in (("local",), ("of-an-extension",)):
        (why,) = own_image.refusals(made(), candidates)
        with pytest.raises(UsageError) as refused:
            own_image.ways(made(), candidates, is_rehearsed=False)
        assert str(refused.value) == why and why.startswith("resources.image_id: ") and "add --provider runpod" in why
    assert own_image.refusals(made(), ()) == own_image.refusals(made(), ("lium",)) == []
    assert own_image.able(made(), ("local",), is_rehearsed=True) == ("local",)


def test_login_at_a_registry_needs_all_variables_and_a_machine_that_runs_a_container(podman):
    podman.touch(0o755)
    login = replace(made(), envs=dict.fromkeys(container.LOGIN, "a"))
    part = replace(made(), envs={container.LOGIN[0]: "a"})
    assert [own_image.refusals(login, (one,)) for one in ("shadeform", "ssh", "local")] == [[], [], []]
    assert own_image.able(login, ("runpod", "shadeform"), is_rehearsed=False) == ("shadeform",)
    for said, candidates, why in (
        (login, (), "boot an image without a login"),
        (login, ("runpod", "lium"), "add --provider shadeform, ssh, local or skypilot"),
        (part, ("shadeform",), "set SKYPILOT_DOCKER_PASSWORD, SKYPILOT_DOCKER_SERVER too"),
    ):
        assert why in own_image.refusals(said, candidates)[0]
    (note,) = own_image.notes(login, ("ssh",), is_rehearsed=False)
    assert "after a login at the registry" in note


@pytest.mark.parametrize(("typed", "why"), [("", ""), ("runpod", "boot an image without a login")])
def test_update_is_checked_against_the_provider_of_the_earlier_version(tmp_path, podman, monkeypatch, typed, why):
    podman.touch(0o755)
    for name in container.LOGIN:
        monkeypatch.setenv(name, "a")
    path, plain = tmp_path / "talk.yaml", FILE.replace(", accelerators: 'L4:1'", "")
    path.write_text(f"name: talk\n{plain}secrets: [{', '.join(container.LOGIN)}]\n")
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 32})
    old = Version(number=1, document=strict_yaml.read(path), engine="run", provider="local", model="")
    with Journal.open(tmp_path / "journal") as journal:
        wanted = service_state.write(WantedService(versions=(old,)))
        service_rows.write_desired_state(journal, "talk", wanted, None)
        with pytest.raises(UsageError, match=why) if why else contextlib.nullcontext():
            found = serve.plan(ServeSpec(config=str(path), provider=typed), journal, settings, print)
            assert found.name == "talk" and found.version.provider == "local"


@pytest.mark.parametrize(
    ("provider", "told", "refused"),
    [
        ("runpod", "the pod boots", ""),
        ("shadeform", "Docker on the machine runs", ""),
        ("local", "", "apt install podm"),
    ],
)
def test_plan_of_a_service_tells_how_the_replicas_run_the_image(tmp_path, podman, provider, told, refused):
    (tmp_path / "talk.yaml").write_text(FILE)
    environ = {"HOME": str(tmp_path), **{f"{one}_API_KEY": "k" * 32 for one in ("RUNPOD", "SHADEFORM")}}
    settings, said = Settings.load(tmp_path, {"provider": provider}, environ=environ), []
    spec = ServeSpec(config=str(tmp_path / "talk.yaml"), provider=provider)
    with Journal.open(tmp_path / "journal") as journal:
        if refused:
            with pytest.raises(UsageError, match=f"line 2: resources.image_id: .*{refused}"):
                serve.plan(spec, journal, settings, said.append)
            return
        version = serve.plan(spec, journal, settings, said.append).version
    assert version.engine == "run" and [one for one in said if told in one and IMAGE in one]
    assert not [one for one in said if "only for sky serve up" in one]
