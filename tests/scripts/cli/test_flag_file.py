"""`inv launch FILE` and `--state-file`: whole commands, on this machine."""

import json

import pytest

import tasks
from infra.errors import UsageError
from infra.selection.machine_spec import MachineSpec, request_for
from scripts.cli import flag_file
from tests.world import ROOT, World

pytestmark = pytest.mark.process


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def planned(world, *words):
    """Return the plan without times, which depend on the machine's load."""
    found = world.json("launch", *words, "--dry-run")
    artifacts = [{name: value for name, value in one.items() if name != "estimate_s"} for one in found["artifacts"]]
    return {name: value for name, value in found.items() if not name.startswith("estimate")} | {"artifacts": artifacts}


def test_flags_of_a_file_apply_unless_typed(world):
    path = world.folder / "run.yaml"
    path.write_text("phase: base\nseed: 5\nsteps: 3\nrun_name: from-file\nno-accept: true\nuse-spot: false\n")
    rest = ("--seed", "5", "--run-name", "from-file", "--no-accept")
    by_hand = planned(world, "--phase", "base", "--steps", "3", *rest)
    assert planned(world, str(path)) == planned(world, "--file", str(path)) == by_hand
    outweighed = planned(world, "--steps", "4", str(path), "--phase", "mid")
    assert outweighed == planned(world, "--phase", "mid", "--steps", "4", *rest)
    told = json.loads(world.inv("rehearse", "--provider", "local", str(path), "--dry-run", "--json"))
    assert told["launch"]["state"] == "planned"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpux: H100", "gpux: no such flag; did you mean gpu?"),
        ("- phase", "expected lines of the form `flag: value`"),
        ("steps: many", "steps 'many' is not a whole number"),
        ("steps: [1, 2]", "expected one word or number"),
        ("yes: 3", "yes: expected true or false"),
        ("country: NO", "country: expected one word or number (quote yes, no, on, off)"),
        ("phase: {base: 1}", "phase: expected one word or number"),
        ("command: {a: b}", "command: expected a string, or a list of words"),
        ("command: []", "command: expected a string, or a list of words"),
        ("env: [{nam: A}]", "env: expected lines of the form `KEY: VALUE`"),
        ("gpu: A100\ngpuType: A100", "--gpu is given twice"),
        ("volumeMounts: []", "expected one entry with volumeName"),
        ("file: again.yaml", "no such flag"),
        ("phase: base\nphase: mid", "is given twice"),
        # No machine is rented here.
        ("gpuType: A100\nvolumeMounts: [{volumeName: vol-1}]", "--volume is for rented machines"),
    ],
)
def test_invalid_file_is_refused_with_the_place(world, text, said):
    path = world.folder / "run.yaml"
    path.write_text(text + "\n")
    process = world.run("launch", str(path), "--dry-run")
    err = process.stderr
    assert process.returncode == 2 and said in err and "Traceback" not in err, err


def test_missing_file_is_refused(world):
    for words in (["nowhere.yaml"], [str(world.folder)]):
        process = world.run("launch", *words)
        err = process.stderr
        assert process.returncode == 2 and words[0] in err and "such as `gpu: H100`" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("launch", "--num-gpus", "0"), "--num-gpus is 0; it must be at least 1"),
        (("export", "--bits", "gguf", "--dtype", "float32"), "--dtype applies to folders only"),
        (("export", "--out", "x", "--gguf-type", "tq2_0"), "--gguf-type tq2_0 needs --bits gguf"),
    ],
)
def test_typed_default_value_counts(world, words, said):
    process = world.run(*words)
    err = process.stderr
    assert process.returncode == 2 and said in err, err


def test_plan_names_its_default_text(world):
    words = ("--phase", "base", "--provider", "local")
    assert [one for one in planned(world, *words)["notes"] if "so the text is pydocs" in one]
    assert not [one for one in planned(world, *words, "--source", "pydocs")["notes"] if "the text is" in one]


def test_two_state_files_never_share_pods(world):
    one, other = (str(world.folder / name / "journal.sqlite") for name in ("one", "other"))
    process = world.run("pod.create", "--run-name", "box", "--state-file", one, "pod.run", "--source", "/nowhere")
    err = process.stderr
    assert (
        process.returncode == 2
        and f"box still exists: the pod costs nothing; end the pod: inv pod.down --state-file {one} box" in err
    )
    assert [row["run"] for row in world.json("pod.list", "--state-file", one)] == ["box"]
    assert world.json("pod.list", "--state-file", other) == world.json("pod.list") == []
    process = world.run("down", "box", "--state-file", other)
    err = process.stderr
    assert process.returncode == 2 and "no runs exist yet" in err
    assert "is a folder. Name a file" in world.run("status", "--state-file", str(world.folder)).stderr
    world.inv("down", "--all", "--state-file", one)
    assert world.json("pod.list", "--state-file", one) == []
    world.check_ended()


@pytest.mark.parametrize(
    ("said", "command"),
    [
        ("command: [bash, -lc, 'cd x && ./train']", "cd x && ./train"),
        ("command: [python, my train.py]", "python 'my train.py'"),
        ("command: |\n  mkdir -p runs\n  ./train", "mkdir -p runs\n  ./train".replace("  ", "") + "\n"),
    ],
)
def test_command_block_is_a_custom_job_with_the_variables_of_the_file(tmp_path, said, command):
    path = tmp_path / "pod.yaml"
    path.write_text(f"gpuType: A100\nenv:\n  - {{name: RUN_SHARD, value: 1}}\n  - RUN_CONFIG=smoke\n{said}\n")
    found = flag_file.read(path, ("gpu", "cmd", "env"))
    assert found == {"gpu": ["A100"], "cmd": [command], "env": ["RUN_SHARD=1", "RUN_CONFIG=smoke"]}


MANIFESTS = {
    "kind: Pod\nname: writer-1b\nimageName: lab/torch:1\ngpuType: NVIDIA A100-PCIE-80GB\nminVcpus: 8\nminMemory: 64\n"
    "ports: [{containerPort: 6006, protocol: tcp}]\ncommand: [/bin/bash, -lc, 'echo $AGAIN']\n": (
        {"run-name": "writer-1b", "gpu": "NVIDIA A100-PCIE-80GB", "cpus": "8", "memory": "64", "cmd": "echo $AGAIN"},
        ("kind", "imageName", "ports"),
    ),
    "name: a\ngpuTypeId: A40\nminMemoryInGb: 16\ncontainerDiskInGb: 50\nnetworkVolumeId: v1\ndockerArgs: sleep 9\n"
    "startSsh: true\ninterruptible: true\n": (
        {"run-name": "a", "gpu": "A40", "memory": "16", "disk-size": "50", "volume": "v1", "cmd": "sleep 9",
         "use-spot": True},
        ("startSsh",),
    ),
    "imageName: x\nvolumeMounts: [{volumeName: v, mountPath: /data}]\n": ({"volume": "v"}, ("imageName", "mountPath")),
}  # fmt: skip


@pytest.mark.pack("jobs")
@pytest.mark.parametrize("text", MANIFESTS, ids=range(len(MANIFESTS)))
def test_manifest_of_runpod_is_read_with_its_field_names(tmp_path, capsys, text):
    flags = {one.spelling for one in tasks.namespace["launch"].flags}
    (tmp_path / "pod.yaml").write_text(text)
    found, idle = MANIFESTS[text]
    assert {name: values[0] for name, values in flag_file.read(tmp_path / "pod.yaml", flags).items()} == found
    told = " ".join(capsys.readouterr().err.split())
    assert [name for name in idle if f"{name}: no effect" not in told and f"{name} has no effect" not in told] == []


def test_every_unknown_key_of_a_file_is_named_at_once(tmp_path):
    (tmp_path / "flags.yaml").write_text("gpux: H100\nstepz: 3\nname: a\ncountry: {a: b}\n")
    with pytest.raises(UsageError) as refused:
        flag_file.read(tmp_path / "flags.yaml", {"gpu", "steps", "run-name", "country"})
    assert [line.split(":")[0].strip() for line in str(refused.value).splitlines()[1:]] == [
        "gpux", "stepz", "name", "country",
    ]  # fmt: skip


@pytest.mark.pack("jobs")
def test_pod_manifest_lacks_only_the_id_of_a_volume():
    """The rehearsed pod of tests/end_to_end/test_street_volume.py runs its command."""
    manifest, flags = ROOT / "infra" / "runpod-pod.yaml", {one.spelling for one in tasks.namespace["launch"].flags}
    with pytest.raises(UsageError, match="volumeName is empty. Write the id of your network volume.*--volume ID"):
        flag_file.read(manifest, flags)
    found = flag_file.read(manifest, flags, {"volume"})
    assert "volume" not in found and "phase" not in found
    knobs = dict(one.split("=") for one in found["env"])
    assert {**knobs, "SHARD_LINES": int(knobs["SHARD_LINES"])} == {
        "RUN_EXPERIMENT": "runpod-1b",
        "RUN_CONFIG": "runpod_1b",
        "RUN_SHARD": "1",
        "SHARD_LINES": 250_000,
        "RUN_INPUT": "fineweb",
    }
    request = request_for(MachineSpec(memory=str(found["memory"][0]), cpus=str(found["cpus"][0])))
    assert (request.memory_bytes, request.cpus, found["gpu"]) == (64 << 30, 8, ["A100-80GB"])
    (command,) = found["cmd"]
    assert "./inv pipeline" in command and "#" not in command
