"""Model folders that would hang or fill a process: each command refuses them with a reason, within limits."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from data.chat import conversations
from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from flows.models import init_model
from infra.errors import UsageError
from infra.settings import Settings
from serve import engines
from serve.engines import ReplicaConfig
from tests.store.untrusted.test_templates import LOOPS
from tests.trainer.model.test_init import configured, foreign
from tests.trainer.model.test_own_chat import CHATML, qwen_like
from tests.trainer.test_plan import ROOT

pytestmark = pytest.mark.process

LATE = "{% if messages|length > 4 %}" + LOOPS + "{% endif %}" + CHATML
TEMPLATES = {
    "loops": (LOOPS, "the model's chat template (uses more than|is not done)"),
    "memory": ("{{ 'a'|center(2000000000) }}", "the model's chat template takes more memory than it may have"),
    "nested": ("{% if 1 %}" * 300 + "{% endif %}" * 300, "the model's chat template is nested too deeply"),
}
BOMB = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}
EDITS = {
    "regex": ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(((a{99}){99}){99}){99}"},
               "behavior": "Isolated", "invert": False}}, "the model's tokenizer cannot be read"),
    "replacement": ({"normalizer": {"type": "Sequence", "normalizers": [BOMB] * 6}},
                    "the model's tokenizer (takes|ended|is not)"),
}  # fmt: skip
BY_DAY = ("memory", "regex")
KINDS = [
    one if one in BY_DAY else pytest.param(one, marks=pytest.mark.nightly)  # Each imports PyTorch.
    for one in (*TEMPLATES, *EDITS)
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return foreign("Qwen2", tmp_path_factory.mktemp("weights") / "theirs", vocab=320)


@pytest.fixture
def hostile(weights, tmp_path):
    """Return a function that makes a model folder of a kind and returns folder and expected message."""

    def make(kind: str) -> tuple[Path, str]:
        template, why = TEMPLATES.get(kind, (CHATML, ""))
        folder = qwen_like(tmp_path / "theirs", template)
        for one in weights.iterdir():
            if one.name != "generation_config.json":
                (folder / one.name).write_bytes(one.read_bytes())
        if kind in EDITS:
            edits, why = EDITS[kind]
            path = folder / "tokenizer.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **edits}))
        return folder, why

    return make


def trainer(*words: object, limit_s: float = 300) -> "subprocess.CompletedProcess[str]":
    """Run the trainer; the timeout only guards against a hanging test."""
    command = [sys.executable, "-m", "trainer", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, input="", capture_output=True, text=True, timeout=limit_s)


def is_refused(done: "subprocess.CompletedProcess[str]", why: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and re.search(why, done.stderr), done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_folder_is_refused_by_chat(hostile, kind):
    folder, why = hostile(kind)
    is_refused(trainer("chat", "--model", folder, "--prompt", "abracadabra"), why)


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_folder_is_refused_by_the_import(hostile, world, monkeypatch, kind):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder, _ = hostile("clean")
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    _, why = hostile(kind)  # After the plan, which refuses hostile templates itself.
    making = replace(world.making("imported"), name="imported/theirs")
    is_refused(trainer("import", "--config", configured(world, "import", making, spec)), why)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_plan_refuses_a_hostile_template(hostile, kind):
    folder, why = hostile(kind)
    with pytest.raises(UsageError, match=why) as refused:
        init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert f"--init {folder}" in str(refused.value)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["memory", "replacement"])
def test_hostile_folder_is_neither_exported_nor_served(hostile, tmp_path, kind):
    folder, why = hostile(kind)
    is_refused(trainer("export", "--model", folder, "--out", tmp_path / "out"), why)
    is_refused(trainer("serve", "--model", folder, "--name", "demo"), why)


def test_template_hostile_on_some_data_is_refused_there_and_work_continues(hostile):
    folder, _ = hostile("late")
    (folder / "chat_template.jinja").write_text(LATE)
    words = tokenizers.load(folder)
    talk = [{"role": ("user", "assistant")[number % 2], "content": "a"} for number in range(6)]
    whole = conversations.render(talk[:4], words)
    with pytest.raises(InputError, match="the model's chat template (uses more than|is not done)") as told:
        conversations.render(talk, words)
    assert told.value.exit_code == 2 and conversations.render(talk[:4], words) == whole


@pytest.mark.parametrize("kind", TEMPLATES)
def test_engine_that_renders_templates_does_not_get_a_hostile_folder(hostile, kind):
    folder, why = hostile(kind)
    replica = ReplicaConfig(engine="vllm-cpu", source=str(folder), name="demo", port=1)
    with pytest.raises(UsageError, match=why):
        engines.exec_engine(replica)
