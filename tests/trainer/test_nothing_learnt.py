"""Phases without targets are refused, and tokens lost to the row length are reported."""

import json
from dataclasses import replace

import pytest

from data.chat import conversations
from data.chat.conversation_counts import ConversationCounts
from data.config import Input
from data.tokens import tokenizer as tokenizers
from scripts.cli.steps_text import record_words
from store.artifacts.artifacts import Store
from tests.trainer.conftest import tiny
from tests.trainer.test_phases import chat_phase, run
from trainer.records.model_config import BlocksConfig
from trainer.reporting.jsonl_log import read

pytestmark = pytest.mark.slow

ANSWER = {"role": "assistant", "content": "It is fine."}
BLOCKS = BlocksConfig(block_size=8, sub_block_size=4)


def question_and_answer(words: int, turns: int = 1) -> list[dict[str, str]]:
    return [{"role": "user", "content": "Please read the paragraph. " * words}, ANSWER] * turns


@pytest.fixture
def learns(world, monkeypatch, tmp_path, capfd):
    """Run base, then a phase of one kind, `mine`, on these conversations; return exit code, messages and notes."""
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    told = tmp_path / "told.jsonl"
    told.touch()
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))

    def learns(phase, talks, **changes):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        (folder / "conversations.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
        Store(world.store).publish(folder, "conversations/mine", "m", {})
        entries = {
            "base": Input(name="base_checkpoints/tiny", fingerprint="f" * 64),
            "mine": Input(name="conversations/mine", fingerprint="m"),
        }
        own = {name: changes.pop(name) for name in ("blocks",) if name in changes}
        config = replace(chat_phase(phase, steps=3, **own), mixture={"mine": 1.0}, **changes)
        capfd.readouterr()
        code = run(world, monkeypatch, phase, config, world.making(phase, **entries))
        return code, capfd.readouterr().err, [json.loads(line) for line in told.read_text().splitlines()]

    return learns


@pytest.mark.parametrize("phase", ["sft", "mid", pytest.param("dlm", marks=pytest.mark.pack("blocks"))])
def test_phase_whose_questions_fill_every_row_is_refused_without_an_artifact(world, learns, phase):
    changes = {"blocks": BLOCKS} if phase == "dlm" else {}
    code, said, _ = learns(phase, [question_and_answer(60), question_and_answer(80, turns=2)] * 30, **changes)
    assert code == 2
    assert "no answer can be trained in any of the 60 conversations of kind 'mine'" in said
    assert "sequence_len=" in said and "Traceback" not in said
    assert not (world.store / f"{phase}_checkpoints").exists()


def test_lost_tokens_are_reported_before_the_first_step_and_in_artifact_and_report(world, learns):
    code, _, records = learns(
        "sft",
        [question_and_answer(60), question_and_answer(1), question_and_answer(1), question_and_answer(1, turns=9)],
    )
    assert code == 0
    (note,) = [at for at, one in enumerate(records) if "left out" in one.get("text", "")]
    assert "left out: 1 of 4 (25.0 %)" in records[note]["text"] and records[note]["alarm"]
    assert note < min(at for at, one in enumerate(records) if one["kind"] == "progress")
    lines = read(world.store / "sft_checkpoints/tiny/metrics.jsonl")
    counts = lines[0]["conversations"]
    assert (counts["conversations"], counts["without_targets"], counts["answers"]) == (4, 1, 12)
    assert counts["cut_answers"] > 1 and records[-1]["talk_counts"] == counts
    assert "conversation" not in record_words({"name": "sft", "state": "done", "result": records[-1]}), "no number"
    figures = [value for _, value in ConversationCounts.from_metrics(counts).lines()]
    assert "1 of 4 (25.0 %)" in figures and figures[-1].startswith(f"{counts['cut_answers']} of 12")
    assert lines[-1]["learnt_tokens"] > 0


def test_loss_over_few_tokens_ends_with_a_warning(world, learns):
    words, nothing = tokenizers.load(world.store / "tokenizer"), {"role": "assistant", "content": ""}
    talks = [[{"role": "user", "content": "z" * length}, nothing] for length in range(90, 140)]
    talk = next(one for one in talks if 115 < len(conversations.render(one, words)[0]) < 128)
    code, _, records = learns("sft", [talk] * 9, sequence_len=128)
    assert code == 0
    warned = [one for one in records if "questions make up most of the data" in one.get("text", "")]
    assert len(warned) == 1 and warned[0]["alarm"]
    result = records[-1]
    assert 0 < result["learnt_tokens"] < 0.01 * result["read_tokens"]
