"""Models with a SentencePiece tokenizer: imported with their own ids, trained, used in a chat, exported."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from data.chat import conversations
from data.config import Input
from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import SPECIALS
from flows.models import find_model, init_model
from infra.errors import UsageError
from infra.settings import Settings
from store.artifacts.artifacts import Store
from tests.data.tokens.pieces import trained, write
from tests.data.tokens.test_sentencepiece import imported_tokenizer
from tests.hub import COMMIT, FolderRepo, serving
from tests.trainer.conftest import WAIT_S
from tests.trainer.model.test_init import configured, foreign
from tests.trainer.model.test_own_chat import TALKS
from tests.trainer.test_plan import ROOT
from trainer import recipes
from trainer.__main__ import main
from trainer.chat import open_talk
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.profiles import derived_phases
from trainer.serving import completion_request
from trainer.serving.text_engine import TextEngine

pytestmark = pytest.mark.process

IDS = 902  # 900 pieces and two added tokens, like 1bitLLM's 32,000 and two.
LLAMA_2 = """\
{{ bos_token }}{% for one in messages %}{% if one.role == 'system' %}{{ '<<SYS>>' + one.content + '<</SYS>>\\n' }}\
{% elif one.role == 'user' %}{{ '[INST] ' + one.content + ' [/INST]' }}{% else %}\
{{ ' ' + one.content + ' ' + eos_token }}{% endif %}{% endfor %}"""
ZEPHYR = """\
{% for one in messages %}{{ '<|' + one.role + '|>\\n' + one.content + eos_token + '\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""


def one_bit(folder: Path, layout: str) -> Path:
    """Return a random model in a published layout, with a tokenizer.model and no tokenizer.json."""
    from tests.packs.bits.test_bitnet_layouts import MICROSOFT, OF_1BITLLM, ONE_BIT_LLM, folder_of, transformers_model

    raw = {**{"1bitLLM": ONE_BIT_LLM, "microsoft": MICROSOFT}[layout], "vocab_size": IDS}
    tensors = dict(transformers_model(raw).state_dict())
    if layout == "1bitLLM":
        tensors = {".".join(OF_1BITLLM.get(one, one) for one in name.split(".")): it for name, it in tensors.items()}
    write(folder_of(raw, tensors, folder), trained())
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    (folder / "added_tokens.json").write_text(json.dumps({"<pad>": 900, "</line>": 901}))
    config = {
        **named,
        "add_bos_token": True,
        "tokenizer_class": "BitnetTokenizer",
        "use_fast": False,
        "auto_map": {"AutoTokenizer": ["tokenization_bitnet.BitnetTokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.day_cases(1)
@pytest.mark.slow
@pytest.mark.pack("bits")
@pytest.mark.parametrize("layout", ["1bitLLM", "microsoft"])
def test_model_with_only_a_tokenizer_model_is_trained_and_exported_with_its_ids(
    layout, world, monkeypatch, capfd, tmp_path
):
    from sentencepiece import SentencePieceProcessor
    from transformers import AutoTokenizer

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = one_bit(world.root / "theirs", layout)
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert spec.has_tokenizer and spec.has_pieces and not spec.own_chat
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    taken = Store(world.store).path("imported/theirs", "f" * 64)
    words, before, after = tokenizers.load(taken), export.read(folder), export.read(taken)
    assert words.vocab_size == IDS + len(SPECIALS) and after.config.vocab_size == 960
    dtype = torch.float32 if layout == "1bitLLM" else torch.bfloat16  # As in the config.
    assert torch.equal(after.head[:IDS], before.head[:IDS].to(dtype).float())  # Each id kept the same row.
    theirs = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert words.encode("  What's 12\n3? \u65e5") == theirs.encode("  What's 12\n3? \u65e5")

    entry = Input(name="imported/theirs", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(3)
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/theirs")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0, capfd.readouterr().err
    made = world.store / "chatsft_checkpoints/theirs"
    assert find_model.gguf_problem(made, recipes.tiny().phases["sft"].model, "f16") == find_model.FOREIGN
    export.copy(made, tmp_path / "out", torch.float32)
    library = AutoTokenizer.from_pretrained(tmp_path / "out")
    for one in ("  What's 12\n3? \u65e5", " led", "<|user_start|>", ""):
        assert library.encode(one, add_special_tokens=False, split_special_tokens=True) == words.encode(one)
    assert library.encode("led") == words.encode("led")  # And no <s>, which is not trained here.
    for talk in TALKS:
        wanted = library.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert conversations.prompt(talk, words) == wanted
    talk = open_talk(made, "theirs", 0.0, 0, 12, 1)
    said = "".join(talk.stream_answer("Who are you?"))
    ids = [*talk.engine.tokens(conversations.prompt(TALKS[0], words), set(words.stops), 12)]
    ids = ids[: next((at for at, one in enumerate(ids) if one in words.stops), len(ids))]
    assert said.rstrip("\ufffd") == words.decode(ids).rstrip("\ufffd") or "\ufffd" in words.decode(ids)


@pytest.mark.day_cases(2)
@pytest.mark.slow
@pytest.mark.parametrize("form", ["prepend", "metaspace"])
@pytest.mark.parametrize("template", [LLAMA_2, ZEPHYR], ids=["llama-2", "zephyr"])
def test_chat_model_keeps_its_pieces_and_its_prompts_equal_transformers(template, form, world, monkeypatch, capfd):
    from transformers import AutoTokenizer

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = write(foreign("Llama", world.root / "theirs", vocab=900), trained())
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "</s>",
        "tokenizer_class": "LlamaTokenizer",
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if form == "metaspace":  # As in newer folders, beside the source file.
        from data.tokens.untrusted import sentencepiece_file

        sentencepiece_file.write(folder)
        said = json.loads((folder / "tokenizer.json").read_text())
        space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
        (folder / "tokenizer.json").write_text(json.dumps({**said, "normalizer": None, "pre_tokenizer": space}))
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert spec.own_chat and spec.has_pieces
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0, capfd.readouterr().err
    taken = Store(world.store).path("imported/theirs", "f" * 64)
    ours, theirs = tokenizers.load(taken), AutoTokenizer.from_pretrained(taken)
    assert torch.equal(export.read(taken).head, export.read(folder).head)  # No row was added.
    for talk in TALKS:
        wanted = theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
        assert conversations.prompt(talk, ours) == wanted
        answered = [*talk, {"role": "assistant", "content": "the paths  there"}]
        ids, mask = conversations.render(answered, ours)
        assert ids[: len(wanted)] == wanted  # Targets follow the prompt.
        assert theirs.decode(ids) == theirs.decode(theirs.apply_chat_template(answered)["input_ids"])
        learnt = [one for one, is_learnt in zip(ids, mask, strict=True) if is_learnt]
        assert ours.decode(learnt).endswith("the paths  there" + (" </s>" if template is LLAMA_2 else "</s>"))
    for one in (" led", "\u65e5\u672c <s>", "a\n b"):
        assert ours.encode(one) == theirs.encode(one, add_special_tokens=False, split_special_tokens=True)


def test_completion_keeps_the_space_after_its_prompt_and_an_answer_has_none(tmp_path):
    words = tokenizers.load(imported_tokenizer(tmp_path, trained()))
    said = words.encode(" France  \u65e5\U0001f600 x", goes_on=True)

    class Saying(TextEngine):
        tokenizer, room = words, 200

        def generate_ids(self, ask, stop):
            yield from ([one] for one in (*said, words.stops[0]))

    for body, is_chat, wanted in (
        ({"prompt": "in"}, False, " France  \u65e5\U0001f600 x"),
        ({"messages": [{"role": "user", "content": "Where?"}]}, True, "France  \u65e5\U0001f600 x"),
    ):
        ask = completion_request.parse(body, is_chat, "demo", words, 200, 0, 1)
        assert "".join(piece.text for piece in Saying().answer(ask)) == wanted


def test_unsupported_tokenizer_is_refused_in_the_plan_from_a_folder_and_a_hub(world, monkeypatch):
    settings = Settings.load(ROOT)
    cases = {
        "unigram": ("tokenizer.model", trained(model_type="unigram"), "tokenizer.model: SentencePiece's Unigram model"),
        "broken": ("tokenizer.model", b"\x00", "tokenizer.model: not a file of SentencePiece"),
        "gpt2": ("vocab.json", b"{}", "the folder has vocab.json, but neither tokenizer.json nor tokenizer.model"),
        "t5": ("spiece.model", b"", "the folder has spiece.model, but neither"),
        "named": ("tokenizer_config.json", b"{}", "the folder has tokenizer_config.json, but neither"),
    }
    repos = {}
    for name, (file, content, said) in cases.items():
        folder = foreign("Llama", world.root / name)
        (folder / file).write_bytes(content)
        repos[f"them/{name}"] = FolderRepo(folder)
        with pytest.raises(UsageError, match=said):
            init_model.resolve_import(str(folder), settings)
    with serving(repos) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name, (_, _, said) in cases.items():
            with pytest.raises(UsageError, match=f"--init hf://them/{name}: .*{said}"):
                init_model.resolve_import(f"hf://them/{name}", settings)


@pytest.mark.nightly
@pytest.mark.pack("bits")
def test_tokenizer_model_comes_from_a_hub_with_its_added_tokens(world, monkeypatch):
    folder = one_bit(world.root / "theirs", "1bitLLM")
    with serving({"1bitLLM/tiny": FolderRepo(folder)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        spec = init_model.resolve_import("hf://1bitLLM/tiny", Settings.load(ROOT))
        assert (spec.has_tokenizer, spec.has_pieces, spec.revision) == (True, True, COMMIT)
        making = replace(world.making("imported"), name="imported/tiny")
        file = configured(world, "import", making, spec)
        environ = {**os.environ, "SLIPWAY_WORK": str(world.work()), "HF_HOME": str(world.root / "hf")}
        words = [sys.executable, "-m", "trainer", "import", "--config", str(file)]
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 0, done.stderr
    assert tokenizers.load(Store(world.store).path("imported/tiny", "f" * 64)).vocab_size == IDS + len(SPECIALS)


@pytest.mark.pack("bits")
def test_different_tokenizer_model_makes_a_different_model(world):
    folder = one_bit(world.root / "theirs", "1bitLLM")
    settings = Settings.load(ROOT)
    first = init_model.resolve_import(str(folder), settings).content
    assert first == init_model.resolve_import(str(folder), settings).content
    (folder / "tokenizer.model").write_bytes(trained(add_dummy_prefix=False))
    assert init_model.resolve_import(str(folder), settings).content != first
