"""Replicas that run the `run` of a service file: the choice, the steps, the secrets, and the limits of the gateway."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.settings import Settings
from infra.transport.scan.inspector import EMPTY_SUBMODULE
from serve import own_run, revision, service, skyserve_export
from serve.controller import limits_of
from serve.policy.replica_states import Facts, ProcessStatus, State
from serve.policy.service_state import Member, Version
from serve.readiness import awaits_engine
from serve.replicas import placement
from serve.replicas.replica_pod import ReplicaLauncher, Stage
from tests.serve.scripted_engine import ROOT
from tests.world import World

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
    first, last = own_run.steps(said, "engine", is_own_machine=False)
    assert (first.name, last.name, first.is_setup, last.max_restarts) == ("setup", "engine", True, 0)
    assert (last.config["text"], last.config["envs"], last.config["workdir"]) == ("serve 8123", {"A": "1"}, "workdir")
    (sent,) = own_run.carried(said)
    assert (sent.name, sent.source) == ("workdir", str(tmp_path))
    assert [one.name for one in own_run.steps(made(), "engine", is_own_machine=True)] == ["engine"]
    assert own_run.carried(made()) == ()


def test_secrets_come_from_the_settings_and_the_shell_and_never_from_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_TOKEN", "from the shell")
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path), "HF_TOKEN": "hf_" + "1" * 20})
    said = made(envs={"HF_TOKEN": None}, secrets=["LAB_TOKEN"])
    assert own_run.secrets(said, settings) == {"HF_TOKEN": "hf_" + "1" * 20, "LAB_TOKEN": "from the shell"}
    with pytest.raises(UsageError, match="secrets: NO_KEY has no value; set the variable in .env"):
        own_run.check(made(secrets={"NO_KEY": None}), True, settings, True)
    with pytest.raises(UsageError, match="secrets: NO_KEY, NO_WORD have no value; set the variables in .env"):
        own_run.secrets(made(secrets=["NO_KEY", "LAB_TOKEN", "NO_WORD"]), settings)
    with pytest.raises(UsageError, match="secrets: RUNPOD_API_KEY: the key of an account never goes to a machine"):
        own_run.secrets(made(secrets=["RUNPOD_API_KEY"]), settings)
    for wrong, why in (({"A_KEY": "x"}, "without the value"), ({"A=": None}, "not the name of a variable")):
        with pytest.raises(UsageError, match=why):
            made(secrets=wrong)


@pytest.mark.parametrize(
    "more", [{"envs": {"LAB_TOKEN": None}}, {"secrets": ["LAB_TOKEN"]}, {"secrets": {"LAB_TOKEN": None}}]
)
def test_probe_has_the_value_of_a_secret_and_the_journal_has_the_name(tmp_path, monkeypatch, more):
    section = {
        "readiness_probe": {
            "path": "/v1/models",
            "headers": {"Authorization": "Bearer $LAB_TOKEN"},
            "post_data": {"words": ["${LAB_TOKEN}", "a"]},
        }
    }
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path)})
    said = made(service=section, **more)
    assert said.probe.headers == {"Authorization": "Bearer $LAB_TOKEN"}
    assert own_run.probe(said, settings) == said.probe  # The probe fails, and the replica is not ready.
    monkeypatch.setenv("LAB_TOKEN", "hush")
    filled = own_run.probe(said, settings)
    assert (filled.headers, filled.post_data) == ({"Authorization": "Bearer hush"}, {"words": ["hush", "a"]})
    launcher = ReplicaLauncher("pages", settings, print, b"seed")
    assert launcher.probe_of(said) == filled and launcher.probe_of(made()) is not None
    with pytest.raises(UsageError, match=r"workdir: \$LAB_TOKEN is a secret"):
        made(workdir="./$LAB_TOKEN", **more)


def test_typed_variables_are_part_of_the_file_and_secrets_are_not_written_into_envs(tmp_path):
    path = tmp_path / "talk.yaml"
    said = "envs: {{MODEL_NAME: {0}}}\nservice: {{readiness_probe: {{path: /$MODEL_NAME}}}}\nrun: serve $MODEL_NAME\n"
    path.write_text(said.format(""))
    with pytest.raises(UsageError, match="envs: MODEL_NAME must have a value; write one, or give -e MODEL_NAME=VALUE"):
        service.load(path)
    assert service.load(path, {"MODEL_NAME": "tiny"}).probe.path == "/tiny"
    path.write_text(said.format("large"))
    assert (service.load(path).probe.path, service.load(path, {"MODEL_NAME": "tiny"}).probe.path) == ("/large", "/tiny")
    path.write_text(f"envs: {{A_TOKEN: {'hush' * 4}}}\nservice: {{replicas: 1}}\nrun: serve\n")
    with pytest.raises(UsageError, match="envs: A_TOKEN: the journal stores this file; write `A_TOKEN:` without the"):
        service.load(path)
    path.write_text("envs: {MAX_TOKENS: 512, TOKENIZER: lab/tiny, A_TOKEN: ''}\nservice: {replicas: 1}\nrun: serve\n")
    assert service.load(path).envs["MAX_TOKENS"] == "512"
    path.write_text("service: {readiness_probe: {path: /, headers: {K: $A_TOKEN}}}\nrun: serve\n")
    with pytest.raises(UsageError, match="write the value, or A_TOKEN: under secrets, and set the variable in .env"):
        service.load(path)


@pytest.mark.parametrize(("engine", "ours"), [("run", set()), ("vllm", {"VLLM_API_KEY"})])
def test_replica_gets_the_secrets_of_the_file_by_name(tmp_path, monkeypatch, engine, ours):
    monkeypatch.setenv("LAB_TOKEN", "hush")
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path), "HF_TOKEN": "hf_1"})
    document = {"service": {"replicas": 1}, "run": "serve", "secrets": ["LAB_TOKEN", "HF_TOKEN"]}
    version = Version(number=1, document=document, engine=engine, model="" if engine == "run" else "hf://a/b")
    found = ReplicaLauncher("pages", settings, print, b"seed").secrets_of(version, "pages-0")
    assert {name: found[name] for name in found if name not in ours} == {"LAB_TOKEN": "hush", "HF_TOKEN": "hf_1"}
    assert ours <= set(found)


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("HF_TOKEN", "hf_" + "x" * 30, True),
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG", True),
        ("DB_PASSWORD", "hunter two", True),
        *(("DB_PASSWORD", value, True) for value in ("12345678", "20261130", "/abc", "~xyz", ".xyz", "a/b", "true")),
        ("SKYPILOT_DOCKER_PASSWORD", "12345678", True),
        ("client_secret", "/q3", True),
        ("TOKENIZER_SECRET", "20261130", True),
        ("API_KEY", "aB3dE5fG7hI9jK1l/mN3oP5qR7sT9uV1wX3yZ5", True),
        ("API_KEY", "/aB3dE5fG7hI9jK1lmN3oP5qR7sT9uV1wX3yZ5+w=", True),
        ("API_KEY", "4111111111111111", True),
        ("TOKENIZER_API_KEY", "x" * 30, True),
        ("SSH_KEY", "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSj\n", True),
        ("DB_PASSWORD_FILE", "/run/password", False),
        ("SECRETS_DIR", "/run/secrets", False),
        ("PASSWORD_PATH", "passwords/of/the/lab.txt", False),
        ("CA_KEY", "/home/Ana/Keys2026/lab-server.key", False),
        ("KEY_FOLDER", "~/keys/of-the-lab-2026/server", False),
        ("TOKEN_MODEL", "Qwen/Qwen3-30B-A3B-Instruct-2507-GGUF", False),
        ("KEY_CACHE", "/cache/snapshots/5f0b02c75b57c5855da9ae460ce51323ea669d8a", False),
        ("EOS_TOKEN", "</s>", False),
        ("TOKEN_LIMIT", "4k", False),
        ("SSL_KEYFILE", "/etc/ssl/private/server.key", False),
        ("MAX_TOKENS", "512", False),
        ("TOKEN_MODEL", "lab/tiny-talker-of-words", False),
        ("PLACE", "x" * 30, False),
        ("STOP_TOKEN", "", False),
        ("KEY_QUESTION", "What is the question of the day?", False),
        ("TOKENIZER", "x" * 30, False),
    ],
)
def test_secret_has_the_name_and_the_value_of_a_secret(name, value, is_hidden):
    assert service.is_hidden(name, value) is is_hidden


@pytest.mark.process
def test_command_takes_a_typed_variable_of_a_service(tmp_path):
    path, world = tmp_path / "talk.yaml", World(tmp_path, {})
    path.write_text(
        "envs: {MODEL_NAME: }\nservice: {readiness_probe: {path: /$MODEL_NAME}, replicas: 1}\nrun: serve $MODEL_NAME\n"
    )
    words = ("serve.up", str(path), "--provider", "local", "--dry-run")
    assert "give -e MODEL_NAME=VALUE" in world.json(*words, code=2)["error"]
    assert "error" not in world.json(*words, "-e", "MODEL_NAME=tiny")


@pytest.mark.process
def test_plan_lists_the_files_to_send_and_the_files_without_content_here(tmp_path):
    """The machine would be rented, and the engine end with ModuleNotFoundError."""
    root, data = tmp_path / "app", tmp_path / "data"
    for folder in (root, data, root / "library"):
        folder.mkdir()
        subprocess.run(["git", "init", "-q", folder], check=True)
    (root / "app.py").write_text("import library\n")
    commit = ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "begin"]
    subprocess.run(["git", "-C", root / "library", *commit], check=True)
    subprocess.run(["git", "-C", root, "add", "-A"], check=True, capture_output=True)
    shutil.rmtree(root / "library" / ".git")  # as after a clone without --recursive
    (data / ".gitattributes").write_text("*.bin filter=lfs\n")
    (data / "a.bin").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{7:064}\nsize 12345\n")
    path, world = tmp_path / "pages.yaml", World(tmp_path, {})
    path.write_text(
        f"service: {{replicas: 1}}\nworkdir: {root}\nfile_mounts: {{~/data: {data}, ~/again: {data}}}\nrun: serve\n"
    )
    words = ("serve.up", str(path), "--provider", "local", "--dry-run")
    said = world.run(*words).stderr
    lines = [
        f"sends {root} as the working folder of the replica: 1 file, 15 B",
        f"  not sent: library: {EMPTY_SUBMODULE}",
        f"sends {data} to ~/data: 2 files, 147 B",
        "  sends 1 pointer of Git LFS instead of content: a.bin. To fetch the content: git lfs pull",
    ]
    assert all(line in said.splitlines() for line in lines), said
    mounts = world.json(*words)["mounts"]
    assert [one["at"] for one in mounts] == ["", "~/data", "~/again"]
    assert [one["pointers"] for one in mounts] == [[], ["a.bin"], ["a.bin"]]
    assert mounts[0]["refused"] == [f"library: {EMPTY_SUBMODULE}"]


@pytest.mark.parametrize(
    ("resources", "gpu", "num_gpus"),
    [
        ({"any_of": [{"accelerators": "L4"}, {"gpus": "A10G:1", "infra": "aws"}]}, "L4,A10G", 1),
        ({"ordered": [{"accelerators": "L4:2"}, {"use_spot": True}], "gpus": "A100:2"}, "L4,A100", 2),
        ({"accelerators": "L4", "any_of": [{"infra": "aws"}, {"infra": "gcp"}]}, "L4", 1),
        ({"gpus": {"L4": 4}, "memory": "16384MB"}, "L4", 4),
        ({"accelerators": {"L4:8": None, "A100:8": None}}, "L4,A100", 8),
        ({"accelerators": {"A100:8": None, "A100-80GB:4": None}}, "A100:8,A100-80GB:4", 0),
    ],
)
def test_accelerators_of_alternatives_are_requested(resources, gpu, num_gpus):
    request = placement.request_of(made(resources={"ports": 8123, **resources}), "pages-0")
    assert (request.gpu, request.num_gpus, request.memory_bytes) == (
        gpu,
        num_gpus,
        16 * 10**9 * ("memory" in resources),
    )


@pytest.mark.parametrize(
    ("resources", "pattern"),
    [
        ({"any_of": [{"accelerators": "L4", "memory": 64}]}, "move memory from any_of to resources"),
        ({"ordered": [{"instance_type": "a"}]}, "move instance_type from ordered to resources"),
    ],
)
def test_key_without_which_a_replica_gets_an_unfit_machine_is_refused(resources, pattern):
    said = made(resources={"ports": 8123, **resources})
    with pytest.raises(UsageError, match=pattern):
        revision.check_file(said, print, is_own_run=True)


def test_file_with_a_variable_model_begins_with_the_way_to_its_own_run(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "fake.json").write_text('{"words": [" one"]}')
    (tmp_path / "talk.yaml").write_text(
        f"envs: {{MODEL: {tmp_path}/model}}\nservice: {{readiness_probe: {{path: /v1/chat/completions, post_data: "
        "{model: tiny, messages: [], max_tokens: 1}}, replicas: 1}\nresources:\n  any_of: [{use_spot: true}, "
        "{use_spot: false}]\nrun: vllm serve $MODEL --max-model-len 9\n"
    )
    settings, told = Settings.load(tmp_path, environ={"HOME": str(tmp_path)}), []
    with Journal.open(tmp_path / "journal") as journal:
        spec = ServeSpec(config=str(tmp_path / "talk.yaml"), provider="local")
        version = serve.plan(spec, journal, settings, told.append).version
        assert version.engine == "fake" and told[0].startswith("run: only for sky serve up")
        assert told[0].endswith("to start the `run` of the file instead: --engine run")
        assert [one for one in told if one.startswith("resources.any_of") and "`use_spot` of `resources`" in one]
        assert serve.plan(replace(spec, engine="run"), journal, settings, told.append).version.engine == "run"


def test_file_that_no_replica_can_run_is_refused(tmp_path):
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    own_run.check(made(service={"replicas": 3}), False, settings, False)
    (tmp_path / "a").write_text("x")
    own_run.check(made(file_mounts={"/data/a": f"{tmp_path}/a"}), False, settings, False)
    for said, why in (
        (made(service={"replicas": 3}), "would listen on port 8123; add --replicas 1"),
        (made(file_mounts={"~/a": "./absent"}), "~/a: ./absent does not exist on this machine"),
        (made(file_mounts={"~/a": "s3://shelf/a"}), "fetch s3://shelf/a in `setup` instead"),
        (made(file_mounts={"~/a": {"name": "shelf", "mode": "MOUNT"}}), "fetch the files in `setup` instead"),
        (
            made(file_mounts={"~/a": {"source": "./a", "mode": "MOUNT_CACHED"}}),
            "write ~/a: ./a, which copies the files",
        ),
        (made(file_mounts={"~/a": {"source": "./a"}}), "MOUNT is for buckets; write ~/a: ./a, which copies the files"),
        (made(file_mounts={"~/a": {"source": "./a", "mode": "COPYY"}}), "mode is 'COPYY'; known: MOUNT, COPY, MOUNT_C"),
        (made(file_mounts={"~/a": {"source": ["./a"], "mode": "COPY"}}), "give each source a path"),
        (made(file_mounts={"../a": "./a"}), "a folder or file below ~ or the workdir"),
        (made(file_mounts={"/data/a": f"{tmp_path}/a"}), "write ~/data/a"),
        (made(run=""), "add the line `run: COMMAND`"),
    ):
        with pytest.raises(UsageError, match=why):
            own_run.check(said, True, settings, True)


def test_file_mounts_are_sent_and_a_changed_file_is_a_new_release(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d.txt").write_text("d")
    (tmp_path / "a.txt").write_text("a")
    asked = {
        "~/a.txt": f"{tmp_path}/a.txt",
        "data": {"source": f"{tmp_path}/data", "mode": "copy"},
        "~/again": f"{tmp_path}/data",
    }
    said = made(file_mounts=asked)
    assert [(one.name, one.source, one.file) for one in own_run.carried(said)] == [
        ("mount-0", str(tmp_path), "a.txt"), ("mount-1", str(tmp_path / "data"), ""),
    ]  # fmt: skip
    (step,) = own_run.steps(said, "engine", is_own_machine=True)
    wanted = [["mount-0", "a.txt", "~/a.txt"], ["mount-1", "", "data"], ["mount-1", "", "~/again"]]
    assert step.config["mounts"] == wanted
    before = own_run.release_of(said)
    assert before == own_run.release_of(said)
    (tmp_path / "data" / "e.txt").write_text("e")
    assert own_run.release_of(said) != before and own_run.release_of(made()) == ""


def test_keys_of_a_mount_are_known_or_refused_and_idle_keys_are_named():
    storage = {"source": "./a", "mode": "COPY"}
    with pytest.raises(UsageError, match="file_mounts: ~/a: unknown key 'mdoe'; did you mean mode"):
        made(file_mounts={"~/a": {**storage, "mdoe": "MOUNT"}})
    said = made(file_mounts={"~/a": {**storage, "store": "s3", "persistent": True}, "~/b": storage, "~/c": "./c"})
    assert own_run.without_effect(said) == [
        "file_mounts: ~/a: store, persistent: no effect, because Slipway itself sends the files"
    ]
    exported = skyserve_export.to_skyserve(said)["file_mounts"]
    assert exported["~/a"] == {**storage, "store": "s3", "persistent": True} and exported["~/c"] == "./c"


def test_sources_of_mounts_become_absolute_before_the_journal_keeps_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mounts = {"~/a": "./a", "~/b": {"source": "b", "mode": "COPY"}, "~/c": "s3://x/y", "~/d": {"name": "n"}}
    assert own_run.with_full_paths({"file_mounts": mounts, "workdir": "."}) == {
        "file_mounts": {
            "~/a": f"{tmp_path}/a", "~/b": {"source": f"{tmp_path}/b", "mode": "COPY"}, "~/c": "s3://x/y",
            "~/d": {"name": "n"},
        },
        "workdir": str(tmp_path),
    }  # fmt: skip


def test_variables_of_a_program_are_those_of_the_file_whatever_their_names():
    said = made(envs={"PORT": 8123, "HOST": "a", "SERVED_NAME": "b", "VLLM_API_KEY": "c"})
    (step,) = own_run.steps(said, "engine", is_own_machine=True)
    assert step.config["envs"] == {"PORT": "8123", "HOST": "a", "SERVED_NAME": "b", "VLLM_API_KEY": "c"}


def test_one_replica_runs_on_this_machine():
    told = []
    policy = {"min_replicas": 2, "max_replicas": 4, "target_qps_per_replica": 1.0}
    for section in ({"replicas": 3}, {"replica_policy": policy}):
        document = {**PAGES, "service": {"readiness_probe": "/alive", **section}}
        one = own_run.with_one_replica(document, service.parse("x", document), told.append)
        assert one["service"] == {"readiness_probe": "/alive", "replicas": 1} and "port 8123" in told.pop()
    assert own_run.with_one_replica(PAGES, service.parse("x", PAGES), told.append) is PAGES and told == []


def test_replicas_of_a_rehearsal_are_processes_of_this_machine(tmp_path):
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    rehearsed = replace(settings, rehearsal=str(tmp_path))
    seen = [
        own_run.is_one_machine(names, one) for names in (("local",), ("ssh", "runpod")) for one in (settings, rehearsed)
    ]
    assert seen == [True, True, False, True]
    with pytest.raises(UsageError, match=r"\(a rehearsal\) all replicas .* port 8123; add --replicas 1$"):
        own_run.check(made(service={"replicas": 2}), True, rehearsed, False)


def test_program_of_the_user_is_in_setup_and_then_before_its_first_answer(tmp_path):
    launcher = ReplicaLauncher("t", Settings.load(ROOT, environ={"HOME": str(tmp_path)}), print, b"")
    op, begun = Op(token="t", run="t-0", vendor="local"), {"started_at": 1.0, "elapsed_s": 2.0}
    stage = launcher.stage(op, {"steps": [{"name": "setup", **begun}, {"name": "engine"}]}, Stage(), "run")
    assert (stage.phase, stage.engine_s) == ("setup", None)
    stage = launcher.stage(op, {"steps": [{"name": "setup", **begun}, {"name": "engine", **begun}]}, stage, "run")
    assert (stage.phase, stage.engine_s) == ("first answer", 2.0)
    waiting = Member(
        number=0, version=1, run="t-0", facts=Facts(launch=ProcessStatus.SUCCEEDED), phases=(("setup", 1.0),)
    )
    assert waiting.state is State.STARTING and awaits_engine(waiting)


def test_gateway_forwards_every_route_only_for_a_program_of_the_user():
    assert limits_of(made(), any_route=True).any_route and not limits_of(made()).any_route
