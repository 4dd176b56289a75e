"""The container image of a file with its own `run`: booted by some vendors, or run by Podman or Docker."""

import contextlib
from dataclasses import replace

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra import strict_yaml
from infra.agent.execution import container
from infra.errors import UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.settings import Settings
from serve import own_image, own_run, service
from serve.policy import service_state
from serve.policy.service_state import Version, WantedService
from serve.replicas import placement

FILE = """\
service: {readiness_probe: /health, replicas: 1}
resources: {image_id: 'docker:vllm/vllm-openai:v0.9', ports: 8000, accelerators: 'L4:1'}
run: vllm serve some/model --port 8000
"""
IMAGE = "vllm/vllm-openai:v0.9"


def made(**resources):
    said = {"image_id": f"docker:{IMAGE}", "ports": 8000, **resources}
    return service.parse("talk", {"service": {"replicas": 1}, "resources": said, "run": "x"})


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Return the path of a `podman` on PATH, without the file."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "podman"


@pytest.mark.parametrize(
    ("candidates", "kept", "left", "is_booted"),
    [
        (("runpod",), ("runpod",), (), True),
        (("runpod", "shadeform", "lium"), ("runpod", "lium"), ("shadeform",), True),
        (("ssh", "runpod", "shadeform"), ("ssh", "shadeform"), ("runpod",), False),
        (("local",), ("local",), (), False),
        (("of-an-extension", "lium"), ("lium",), ("of-an-extension",), True),
    ],
)
def test_replicas_run_an_image_in_one_way_and_other_providers_are_named(podman, candidates, kept, left, is_booted):
    podman.touch(0o755)
    found = own_image.use(made(), candidates, is_rehearsed=False)
    assert (found.candidates, found.left_out) == (kept, left)
    assert (found.booted, found.contained) == ((IMAGE, "") if is_booted else ("", IMAGE))
    first, *more = own_image.notes(found, made(), is_rehearsed=False)
    assert ("boots" in first if is_booted else "in a container of" in first) and IMAGE in first
    assert [f"{left[0]}: left out, because machines of {', '.join(kept)}" in one for one in more] == [True] * bool(left)
    assert placement.request_of(made(), "talk-0", image=found.booted).image == found.booted
    (step,) = own_run.steps(made(), "engine", False, found.contained)
    assert (step.config["image"], step.config["own_home"]) == (found.contained, not is_booted)


def test_image_of_an_alternative_counts_and_an_image_of_a_cloud_does_not(podman):
    assert own_image.image_of(made(image_id=None, any_of=[{"infra": "aws"}, {"image_id": "docker:a:1"}])) == "a:1"
    plain = made(image_id="ami-1")
    assert own_image.use(plain, ("local", "runpod"), False) == own_image.ImageUse(candidates=("local", "runpod"))
    assert [key for key, _ in placement.ignored_settings(plain, is_own_run=True)] == ["resources.image_id"]
    assert placement.ignored_settings(made(), is_own_run=True) == []
    assert [key for key, _ in placement.ignored_settings(made())] == ["resources.image_id"]


def test_image_that_no_machine_runs_is_refused_with_the_next_step(podman):
    for candidates in (("local",), ("of-an-extension",)):
        (why,) = own_image.refusals(made(), candidates)
        with pytest.raises(UsageError) as refused:
            own_image.use(made(), candidates, is_rehearsed=False)
        assert str(refused.value) == why and why.startswith("resources.image_id: ") and "add --provider runpod" in why
    assert own_image.refusals(made(), ()) == own_image.refusals(made(), ("lium",)) == []
    assert own_image.use(made(), ("local",), is_rehearsed=True).candidates == ("local",)


def test_login_at_a_registry_needs_all_variables_and_a_machine_that_runs_a_container(podman):
    podman.touch(0o755)
    login = replace(made(), envs=dict.fromkeys(container.LOGIN, "a"))
    part = replace(made(), envs={container.LOGIN[0]: "a"})
    assert [own_image.refusals(login, (one,)) for one in ("shadeform", "ssh", "local")] == [[], [], []]
    assert own_image.use(login, ("runpod", "shadeform"), is_rehearsed=False).candidates == ("shadeform",)
    for said, candidates, why in (
        (login, (), "boot an image without a login"),
        (login, ("runpod", "lium"), "add --provider shadeform, ssh, local or skypilot"),
        (part, ("shadeform",), "set SKYPILOT_DOCKER_PASSWORD, SKYPILOT_DOCKER_SERVER too"),
    ):
        assert why in own_image.refusals(said, candidates)[0]
    (note,) = own_image.notes(own_image.use(login, ("ssh",), False), login, is_rehearsed=False)
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
