"""The model of a service: the model of the service file, independent of the model of the shipped file."""

import json

import pytest

from infra.errors import UsageError
from serve import revision, service
from serve.policy.service_state import Version
from tests.world import World

HUB = "hf://Qwen/Qwen3-0.6B"  # the shipped file and examples/service.yaml name this model
OLD = Version(number=1, document={}, where="x", engine="fake", provider="local", model="/old", store="", weights="")


def model_of(document, config="service.yaml", model="", tag="", old=None):
    return revision.requested_model(service.parse("x", {"service": {}, **document}), config, model, tag, old)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"slipway": {"model": HUB}}, HUB),
        ({"envs": {"MODEL": "Qwen/Qwen3-0.6B"}}, HUB),
        ({"envs": {"MODEL": "/model"}, "file_mounts": {"/model": "s3://bucket/model"}}, "s3://bucket/model"),
        ({"envs": {"MODEL": "Qwen/Qwen3-0.6B"}, "slipway": {"model": "sft"}}, "sft"),
    ],
)
def test_the_model_of_a_given_file_is_its_named_model(document, said):
    assert model_of(document) == model_of(document, old=OLD) == said
    assert model_of(document, model="base") == "base"


def test_the_default_is_the_newest_local_model_or_the_served_model():
    assert model_of({"slipway": {"model": HUB}}, config="") == ""
    assert model_of({}, config="", old=OLD) == model_of({}, old=OLD) == "/old"
    assert model_of({}, tag="mine", old=OLD) == ""


def test_a_file_without_a_model_is_refused():
    with pytest.raises(UsageError, match="service.yaml names no model; add `slipway"):
        model_of({})


@pytest.mark.process
def test_a_file_is_given_by_flag_or_as_a_bare_word(tmp_path):
    world = World(tmp_path)
    model = tmp_path / "mine"
    model.mkdir()
    (model / "fake.json").write_text(json.dumps({"words": [" a"]}))
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps({"service": {"replicas": 1}, "slipway": {"model": str(model)}}))
    for words in ((str(file),), ("--config", str(file))):
        shown = world.json("serve.up", *words, "--name", "demo", "--provider", "local", "--dry-run")
        assert shown["model"] == str(model)
    file.write_text(json.dumps({"service": {"replicas": 1}, "slipway": {"model": HUB}}))
    shown = world.json("serve.up", str(file), "--name", "demo", "--provider", "local", "--engine", "fake", "--dry-run")
    assert shown["model"] == HUB
