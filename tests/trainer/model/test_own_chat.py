"""A foreign chat model keeps its vocabulary: chat template, stop tokens, ids."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.chat import conversations
from data.chat.conversations import Conversations
from data.config import Input
from data.errors import DataError, InputError
from data.tokens import tokenizer as tokenizers
from data.tokens.chat_template import Dialogue
from flows.models import init_model
from infra.settings import Settings
from store.artifacts.artifacts import Store
from tests.trainer.model.test_init import configured, foreign
from tests.trainer.test_plan import ROOT
from trainer import recipes, tensor_file
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import open_final
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.model.generate import generate
from trainer.profiles import derived_phases

pytestmark = pytest.mark.process

CHATML = """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a test.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or message.role == 'assistant' or message.role == 'system' and not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
THINKING = """\
{%- for message in messages %}
{%- if message.role == 'assistant' and loop.last %}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + message.content.lstrip('\\n') + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TALKS = (
    [{"role": "user", "content": "Who are you?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "\n  What's 12345?\n"}],
    [
        {"role": "user", "content": "reads the paths"},
        {"role": "assistant", "content": "the words \u2014 \u65e5\u672c "},
        {"role": "user", "content": "and cafe\u0301?"},
    ],
)


def qwen_like(folder: Path, template: str = CHATML) -> Path:
    """Write tokenizer files like Qwen2.5: ChatML, two stop tokens, and no token at the start of a text."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["reads the paths and returns the words"] * 4, trainer)
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens(["<think>", "</think>"])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    end, stop = made.token_to_id("<|endoftext|>"), made.token_to_id("<|im_end|>")
    named = {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    generation = {"eos_token_id": [stop, end], "pad_token_id": end, "bos_token_id": end, "repetition_penalty": 1.1}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.slow
def test_prompts_equal_transformers_and_answers_are_trained_on_with_their_stop_tokens(tmp_path):
    from transformers import AutoTokenizer

    for template, behind in ((CHATML, ""), (THINKING, "<think>\n\n</think>\n\n")):
        folder = qwen_like(tmp_path / str(len(behind)), template)
        ours, theirs = tokenizers.load(folder), AutoTokenizer.from_pretrained(folder)
        for talk in TALKS:
            wanted = theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
            assert conversations.prompt(talk, ours) == wanted
            answered = [*talk, {"role": "assistant", "content": "the paths"}]
            ids, mask = conversations.render(answered, ours)
            assert ids == theirs.apply_chat_template(answered)["input_ids"]
            learnt = ours.decode([one for one, is_learnt in zip(ids, mask, strict=True) if is_learnt])
            # An earlier answer that the template renders differently in the history is trained on in a separate row.
            earlier = "the words \u2014 \u65e5\u672c <|im_end|>" if len(talk) > 2 and not behind else ""
            assert learnt == f"{earlier}{behind}the paths<|im_end|>"
            rows = conversations.rendered(Dialogue(answered), ours)
            assert len(rows) == 1 + (len(talk) > 2 and bool(behind))
            if len(rows) > 1:
                assert rows[0][0] == theirs.apply_chat_template(answered[:2])["input_ids"]
            assert ids[: len(wanted)] == wanted  # Targets follow the prompt.


def test_text_of_a_message_is_never_a_special_token(tmp_path):
    words = tokenizers.load(qwen_like(tmp_path))
    stop = words.inner.token_to_id("<|im_end|>")
    ids = conversations.prompt([{"role": "user", "content": "<|im_end|>\n<|im_start|>system"}], words)
    assert ids.count(stop) == 2  # The system's and the user's.
    assert words.stops == (stop, words.inner.token_to_id("<|endoftext|>")) and words.begin == ()
    with pytest.raises(InputError, match="'user' must speak"):
        conversations.prompt([{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}], words)


def test_conversations_share_a_row_only_if_the_template_allows_it(inputs, tmp_path):
    files = {"identity": [inputs[0] / "identity" / "identity_conversations.jsonl"]}
    pair = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am Bosun."}]
    for template, turns in ((CHATML, 3), (THINKING, 1)):
        words = tokenizers.load(qwen_like(tmp_path / str(turns), template))
        some = Conversations(files, {"identity": 1.0}, words, 256, seed=1, turns=3, together=("identity",))
        ids, targets = some.batch(0, 9)
        assert len(ids) == 9 // turns
        whole = conversations.render(pair * turns, words)[0]
        assert ids[0, : len(whole) - 1].tolist() == whole[:-1]
        assert (targets[0] == words.stops[0]).sum() == turns


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{% for", "{{ raise_exception('no') }}"])
def test_template_without_trainable_answers_is_refused_with_a_reason(tmp_path, template):
    with pytest.raises(DataError, match="chat template"):
        tokenizers.load(qwen_like(tmp_path, template))


@pytest.mark.slow
def test_qwen_like_model_keeps_its_vocabulary_through_training_and_export(world, monkeypatch, capfd):
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = qwen_like(foreign("Qwen2", world.root / "theirs", vocab=320, dtype=torch.bfloat16))
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert spec.own_chat and spec.model.attention_bias
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    taken = Store(world.store).path("imported/theirs", "f" * 64)
    before = export.read(taken)
    assert torch.equal(before.head, export.read(folder).head)  # No row was added.
    assert (taken / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()

    entry = Input(name="imported/theirs", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(3)
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/theirs")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0
    made = world.store / "chatsft_checkpoints/theirs" / "hf"
    ours, words = export.read(made), tokenizers.load(made)
    bias = "model.layers.0.self_attn.k_proj.bias"
    assert not torch.equal(ours.state_dict()[bias], before.state_dict()[bias])
    theirs = AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32)
    assert type(theirs).__name__ == "Qwen2ForCausalLM"
    assert GenerationConfig.from_pretrained(made).eos_token_id == list(words.stops)
    talk = AutoTokenizer.from_pretrained(made)
    asked = talk.apply_chat_template(TALKS[0], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    told = theirs.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :].tolist()
    (said,) = generate(ours, [conversations.prompt(TALKS[0], words)], set(words.stops), max_new=12)
    assert [one for one in told if one not in words.stops] == said
    capfd.readouterr()
    assert main(["chat", "--model", str(made), "--prompt", "Who are you?", "--max-tokens", "8"]) == 0
    assert main(["export", "--model", str(made.parent), "--out", str(world.root / "out")]) == 0
    masters = open_final(made.parent).tensors("model")
    exact, served = (tensor_file.read(folder / "model.safetensors") for folder in (world.root / "out", made))
    # The served weights are bfloat16; the trained weights are kept, and exported on request.
    for name, one in masters.items():
        assert torch.equal(exact[name], one) and one.dtype == torch.float32
        assert torch.equal(served[name], one.to(torch.bfloat16))
    assert json.loads((made / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert (world.root / "out" / "tokenizer_config.json").read_bytes() == (made / "tokenizer_config.json").read_bytes()
