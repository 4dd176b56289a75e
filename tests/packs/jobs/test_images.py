"""`image_id` of a job file: the image of the pod or of a container on the machine; refused or idle elsewhere.

A container is made and signalled by Podman itself in `test_containers.py`.
"""

import contextlib
import json
import os
import signal

import pytest

from flows.runs import work_kinds
from flows.specs.launch import LaunchSpec
from infra.agent.execution import container
from infra.errors import UsageError
from infra.providers import container_images
from infra.selection.machine_spec import MachineSpec, request_for
from infra.settings import Settings
from packs.jobs.control import images, job_file, job_steps, lint, machines, resolve
from packs.jobs.control.flags import JobFlags
from packs.jobs.control.refusals import Refusals
from scripts.runs.launch import LaunchFlags
from tests.world import ROOT

JOB = "resources: {{{0}}}\nrun: conda activate base\n"
IMAGES = {
    "image_id: 'docker:ubuntu:22.04'": ["ubuntu:22.04"],
    "image_id: 'docker:nvcr.io/nvidia/pytorch:24.07-py3', accelerators: 'H100:8'": ["nvcr.io/nvidia/pytorch:24.07-py3"],
    "any_of: [{image_id: 'docker:a:1'}, {image_id: 'docker:b:2'}]": ["a:1", "b:2"],
    "image_id: 'docker:a', ordered: [{accelerators: H100}, {accelerators: A100}]": ["a", "a"],
}
OF_A_CLOUD = ("image_id: ami-062ddd90fb6f8267a", "image_id: 'skypilot:gpu-ubuntu-2204'", "image_id: {us-east-1: ami-1}")


def read(tmp_path, resources, provider):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(resources))
    refused = Refusals(str(path))
    file = job_file.read(path, refused)
    resolve.check(file, refused, provider, is_rented=provider != "local", is_own=False, is_rehearsed=False)
    linted = [one.text for one in lint.lint(path, provider) if one.is_refused]
    assert linted == [one.text for one in refused.found]
    return file, linted


@pytest.mark.parametrize("provider", ["", "runpod", "lium", "market"])
@pytest.mark.parametrize("resources", IMAGES, ids=range(len(IMAGES)))
def test_image_is_part_of_the_request(tmp_path, resources, provider):
    file, refused = read(tmp_path, resources, provider if provider != "market" else "")
    found = machines.wishes(file.tasks[0], MachineSpec(), provider, True, "job")
    assert refused == [] and [request_for(one.machine).image for one in found.wishes] == IMAGES[resources]
    assert not [one for one in found.notes if "image_id" in one]


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """Return the path of a `podman` on PATH, without the file."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "podman"


@pytest.mark.parametrize("provider", ["shadeform", "local", "ssh"])
@pytest.mark.parametrize("resources", IMAGES, ids=range(len(IMAGES)))
def test_image_is_a_container_where_machines_boot_none(tmp_path, podman, resources, provider):
    podman.touch(0o755)
    file, refused = read(tmp_path, resources, provider)
    found = machines.wishes(file.tasks[0], MachineSpec(), provider, provider == "shadeform", "job")
    assert refused == [] and {request_for(one.machine).image for one in found.wishes} == {""}
    (image,) = {images.of_container(one, provider, is_rehearsed=False) for one in file.tasks}
    assert image == IMAGES[resources][0] and images.of_container(file.tasks[0], provider, is_rehearsed=True) == ""
    layout = job_steps.lay_out(file, is_own=True)
    (step,) = job_steps.steps_of(file, layout, [{}], [], False, "1", [image])
    assert (step.config["image"], step.config["own_home"]) == (image, True)


def test_image_is_refused_without_podman_on_this_machine_and_where_machines_run_no_container(tmp_path, podman):
    for provider, pattern in (("local", "apt install podman"), ("slurm", "machines of slurm run no container image")):
        _, (why,) = read(tmp_path, "image_id: 'docker:a'", provider)
        assert pattern in why and why.endswith("add --provider runpod or --provider lium")


LOGIN = {f"SKYPILOT_DOCKER_{one}": one.lower() for one in ("USERNAME", "PASSWORD", "SERVER")}


@pytest.mark.parametrize("provider", ["", "runpod", "lium", "shadeform", "ssh"])
@pytest.mark.parametrize("section", ["envs", "secrets"])
def test_login_at_a_registry_is_refused_beside_an_image(tmp_path, section, provider):
    path = tmp_path / "job.yaml"
    for resources, names, is_refused in (
        ("image_id: 'docker:team/app:1'", LOGIN, True),
        ("any_of: [{image_id: 'docker:team/app:1'}]", list(LOGIN)[:1], True),
        ("image_id: ami-1", LOGIN, False),
        ("cpus: 2", LOGIN, False),
        ("image_id: 'docker:team/app:1'", ["SKYPILOT_SHELF"], False),
    ):
        said = "".join(f"  {one}: a\n" for one in names)
        path.write_text(f"run: x\nresources: {{{resources}}}\n{section}:\n{said}")
        found = [(one.line, one.text) for one in lint.lint(path, provider) if one.is_refused]
        is_refused = is_refused and provider not in container_images.CONTAINERS
        assert [line for line, text in found if "boot an image without a login" in text] == [2] * is_refused, found


@pytest.mark.parametrize(
    ("vendors", "is_refused"), [(("SHADEFORM",), False), (("RUNPOD",), True), (("RUNPOD", "SHADEFORM"), True)]
)
def test_login_at_a_registry_is_accepted_for_the_only_vendor_with_a_key(tmp_path, vendors, is_refused):
    path = tmp_path / "job.yaml"
    path.write_text(f"run: x\nresources: {{image_id: 'docker:team/app:1'}}\nenvs: {json.dumps(LOGIN)}\n")
    environ = {"HOME": str(tmp_path), **{f"{one}_API_KEY": "k" * 20 for one in vendors}}
    settings, spec = Settings.load(ROOT, environ=environ), LaunchFlags(added=(JobFlags(),))
    work = work_kinds.work_of_command(spec, str(path))
    with pytest.raises(UsageError, match="without a login") if is_refused else contextlib.nullcontext():
        work.variables(settings)
        assert work.resolve(spec, settings).work.secrets.keys() >= LOGIN.keys()


@pytest.mark.parametrize(
    "provider", ["runpod", "shadeform", "local", pytest.param("skypilot", marks=pytest.mark.pack("skypilot"))]
)
def test_typed_login_at_a_registry_is_refused_or_complete(tmp_path, provider):
    path = tmp_path / "job.yaml"
    path.write_text("run: x\nresources: {image_id: 'docker:team/app:1'}\n")
    file = job_file.load(path)
    environ = {"HOME": str(tmp_path), **{f"{one}_API_KEY": "k" * 20 for one in ("RUNPOD", "SHADEFORM")}}
    for names, pattern in (
        (LOGIN, "without a login" if provider == "runpod" else ""),
        (list(LOGIN)[:2], "without a login" if provider == "runpod" else "set SKYPILOT_DOCKER_SERVER too"),
        ((), ""),
    ):
        given = [f"{name}={LOGIN[name]}" for name in names]
        settings = Settings.load(ROOT, {"provider": provider}, given, environ=environ)
        with pytest.raises(UsageError, match=f"line 2: image_id: .*{pattern}") if pattern else contextlib.nullcontext():
            work = resolve.understand(LaunchSpec(provider=provider), file, {}, settings).work
            assert work.envs == ({},) and work.secrets == {name: LOGIN[name] for name in names}


SCRIPTED = """#!/bin/sh
echo "$@" >> {folder}/words
case " $* " in *" login "*)
  cat > {folder}/password
  for one in "$@"; do case "$one" in
    --authfile=*) echo private > "${{one#--authfile=}}" ;;
    --config=*) echo private > "${{one#--config=}}/config.json" ;;
  esac; done
  exit {code} ;;
esac
case "$1 $2" in "container inspect" | "image inspect") exit 1 ;; esac
"""


@pytest.mark.process
@pytest.mark.parametrize("engine", ["podman", "docker"])
@pytest.mark.parametrize("code", [0, 125])
def test_container_logs_in_before_the_pull_and_leaves_no_login(tmp_path, monkeypatch, capfd, engine, code):
    (folder := tmp_path / "bin").mkdir()
    (folder / engine).write_text(SCRIPTED.format(folder=folder, code=code))
    (folder / engine).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(container, "ENGINES", (engine,))
    monkeypatch.setattr(container.signal, "signal", lambda *_: None)
    (tmp_path / "pod" / "state").mkdir(parents=True)
    one = container.of_task("team/app:1", tmp_path / "pod", 0, ())
    (text := tmp_path / "run.sh").write_text("")
    login = dict(zip(container.LOGIN, ("ann", "hush", "nvcr.io"), strict=True))
    assert one.run(text, login, tmp_path, ()) == (code, False)
    words = (folder / "words").read_text().splitlines()
    acts = [next(one for one in said.split() if not one.startswith("-")) for said in words]
    expected = ["login", "pull", "create", "start"] if not code else ["login"]
    assert [said for said in acts if said in ("login", "pull", "create", "start")] == expected
    assert (folder / "password").read_text() == "hush" and "hush" not in "".join(words)
    assert ("the login at nvcr.io as ann failed" in capfd.readouterr().out) is bool(code)
    assert not code or words[-1].endswith("--username=ann --password-stdin nvcr.io")
    assert code or [said.split()[-1] for said in words if "pull" in said] == ["nvcr.io/team/app:1"]
    assert not [path for path in (tmp_path / "pod" / "state").iterdir() if "login" in path.name]


@pytest.mark.process
@pytest.mark.parametrize(
    ("told", "limit_s", "code", "said"),
    [([], 0.5, container.TIMED_OUT, "nvcr.io has not answered the login"), ([signal.SIGTERM], 600.0, 143, "")],
    ids=["limit", "signal"],
)
def test_login_at_a_registry_without_an_answer_ends(tmp_path, monkeypatch, capfd, told, limit_s, code, said):
    (engine := tmp_path / "podman").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    engine.chmod(0o755)
    monkeypatch.setattr(container, "LOGIN_S", limit_s)
    private = tmp_path / "login"
    login = ("ann", "hush", "nvcr.io")
    assert container._pull_with_login([str(engine)], "nvcr.io/app:1", login, private, told) == code
    out = capfd.readouterr().out
    assert said in out and bool(out) is bool(said) and not private.exists()
    pid = (tmp_path / "pid").read_text().strip() if (tmp_path / "pid").exists() else ""
    with pytest.raises(ProcessLookupError) if pid else contextlib.nullcontext():
        os.kill(int(pid or os.getpid()), 0)


@pytest.mark.parametrize("image", ["team/app:1", "nvcr.io/team/app:1"])
def test_image_of_a_login_is_at_the_registry_of_the_login(image):
    assert container.at_registry(image, "nvcr.io") == "nvcr.io/team/app:1"


def test_container_gets_names_and_no_values_of_variables_in_its_command_line(tmp_path):
    for name in ("state", "work", "code"):
        (tmp_path / "pod" / name).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "pod" / "workdir").symlink_to(tmp_path / "elsewhere")
    one = container.Container("sw1-a-0", "a:1", tmp_path / "pod", [(f"{tmp_path}/elsewhere", "/data")])
    text = tmp_path / "run.sh"
    environ = {"A_KEY": "it's hidden", "PATH": "/machine", "BASH_ENV": "/begin", "LANG": "C.UTF-8", "TMPDIR": "/tmp"}
    one._write(text, environ, tmp_path, {"LANG": "C.UTF-8"})
    words = one.words(["podman"])
    assert [word for word in words if word.startswith("--volume=") and "begin.bash" not in word] == [
        f"--volume={tmp_path}/pod:{tmp_path}/pod", f"--volume={tmp_path}/elsewhere:{tmp_path}/elsewhere",
        f"--volume={tmp_path}/elsewhere:/data",
    ]  # fmt: skip
    assert words[-2:] == ["a:1", str(one.first)] and "hidden" not in " ".join(words)
    variables = tmp_path / "pod" / "state" / "sw1-a-0.bash.variables"
    assert "export LANG=C.UTF-8" in variables.read_text() and "TMPDIR" not in variables.read_text()
    assert "PATH" not in variables.read_text() and variables.stat().st_mode & 0o777 == 0o600
    assert "export A_KEY='it'\"'\"'s hidden'" in variables.read_text()


@pytest.mark.parametrize("provider", ["runpod", "shadeform"])
@pytest.mark.parametrize("resources", OF_A_CLOUD, ids=range(len(OF_A_CLOUD)))
def test_image_of_a_cloud_has_no_effect_and_the_plan_says_so(tmp_path, resources, provider):
    file, refused = read(tmp_path, resources, provider)
    found = machines.wishes(file.tasks[0], MachineSpec(), provider, True, "job")
    assert refused == [] and [one.machine.image for one in found.wishes] == [""]
    assert "image_id has no effect" in " ".join(found.notes)


def test_lint_expects_conda_in_an_image(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format("image_id: 'docker:continuumio/miniconda3'"))
    assert lint.lint(path) == []
    path.write_text(JOB.format("cpus: 2"))
    assert ["conda" in one.text for one in lint.lint(path)] == [True]
