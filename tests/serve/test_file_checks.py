"""All refusals of the file of a service at once, each with its line; a start refuses what the linter refuses."""

import json
import re

import pytest

from flows.services import serve
from flows.specs.service import ServeSpec
from infra import strict_yaml
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from serve import file_checks, file_refusals, service
from serve.replicas import placement

WRONG = """\
service:
  replcas: 2
  readiness_probe: {path: $NO}
  replica_policy:
    min_replicas: x
resources:
  gpus: L4
  accelerators: A100
  ports: 70000
  memory: lots
  any_of: [{accelerators: L4, cpus: 8}]
secrets: {A: b}
envs:
  B-C: 1
workdir: ./no-such-folder
file_mounts:
  ~/a.txt: s3://shelf/a
  ~/b: ./no-such-file
run: serve
"""
LINES = {
    2: "did you mean replicas",
    3: r"^service: \$NO is not a variable of envs",
    5: "min_replicas: Expected `int`",
    7: "exclude each other; keep accelerators",
    9: "70000 is not a port",
    10: "expected a number above 0",
    11: "move cpus from any_of to resources",
    12: "secrets: A: the journal stores this file",
    14: "'B-C' is not the name of a variable",
    15: "no-such-folder does not exist",
    17: "fetch s3://shelf/a in `setup`",
    18: "no-such-file does not exist",
}


def plan(path, tmp_path, provider="local", **flags):
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 32})
    with Journal.open(tmp_path / "journal") as journal:
        return serve.plan(ServeSpec(config=str(path), provider=provider, **flags), journal, settings, print)


def test_every_refused_line_is_named_at_once_by_the_check_and_the_start(tmp_path):
    path = tmp_path / "talk.yaml"
    path.write_text(WRONG)
    (document,) = strict_yaml.documents(path)
    found = {file_refusals.line_of(document, one): one for one in file_checks.refusals_of(path)}
    assert sorted(found) == sorted(LINES)
    assert all(re.search(words, found[line]) for line, words in LINES.items()), found
    with pytest.raises(UsageError) as refused:
        plan(path, tmp_path)
    first, *lines = str(refused.value).splitlines()
    assert first == f"{path}: 12 lines to correct"
    assert lines == [f"  line {line}: {found[line]}" for line in sorted(found)]


def test_one_refusal_is_one_line(tmp_path):
    path = tmp_path / "talk.yaml"
    path.write_text("service: {replicas: 1}\nresources:\n  memory: lots\nrun: serve\n")
    with pytest.raises(UsageError) as refused:
        plan(path, tmp_path)
    assert str(refused.value).startswith(f"{path}: line 3: resources.memory is 'lots'; expected a number")
    assert plan(path, tmp_path, memory="64").version.service.file.resources.memory == "64"  # The flag replaces the key.


@pytest.mark.parametrize(
    "resources",
    [
        {"gpus": "L4"},
        {"accelerators": {"L4": 1}, "ephemeral_storage": "1Ti"},
        {"any_of": [{"accelerators": "L4:2", "use_spot": True}, {"gpus": "A10G"}]},
        {"ordered": [{"accelerators": "no such kind"}]},
    ],
)
def test_flags_of_the_machine_replace_the_keys_of_the_file_also_in_alternatives(tmp_path, resources):
    path = tmp_path / "talk.yaml"
    path.write_text(json.dumps({"service": {"replicas": 1}, "run": "serve", "resources": resources}))
    made = plan(path, tmp_path, "runpod", gpu="H100", num_gpus=2, disk_size="100").version.service
    request = placement.request_of(made, "talk-0")
    assert (request.gpu, request.num_gpus, request.disk_bytes) == ("H100", 2, 100 * placement.GB)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("resources: unknown key 'acelerators'; did you mean accelerators?", 4),
        ("resources: any_of 2: unknown key 'cpu'", 7),
        ("resources.any_of 1.memory: Expected", 6),
        ("file_mounts: ~/a.txt: no", 9),
        ("envs: WORD, OTHER must have a value", 11),
        ("envs: 'OTHER' is not the name of a variable", 12),
        ("file_mounts: $NAME is not a variable of envs", 9),
        ("something else", 1),
    ],
)
def test_line_of_a_refusal_is_the_line_of_its_key(tmp_path, text, found):
    path = tmp_path / "talk.yaml"
    path.write_text(
        "service:\n  replicas: 1\nresources:\n  acelerators: A\n  any_of:\n  - memory: [1]\n  - cpu: 4\n"
        "file_mounts:\n  ~/a.txt: a/${NAME}\nenvs:\n  WORD:\n  OTHER:\n"
    )
    (document,) = strict_yaml.documents(path)
    assert file_refusals.line_of(document, text) == found


def test_refused_parts_fall_away_and_the_others_are_read():
    made, found = service.examine({"service": {"replicas": "two", "ports": 9}, "envs": {"A": 1, "B": [2]}, "run": "x"})
    assert len(found) == 2 and (made.port, made.envs, made.policy.most, made.file.run) == (9, {"A": "1"}, 1, "x")
