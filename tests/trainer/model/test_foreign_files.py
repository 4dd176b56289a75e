"""Tokenizer and model files of every version of transformers: read, or refused by the dry run."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch

from data.chat import conversations
from data.tokens import tokenizer as tokenizers
from flows.models import init_model
from infra.errors import UsageError
from infra.settings import Settings
from store.artifacts import model_files
from store.artifacts.tokenizer_files import named_tokens, template_of
from tests.data.chat.templates import IM, MARKED, QWEN25, write
from tests.hub import FolderRepo, serving
from tests.trainer.model.test_init import configured, foreign, gpt2_like
from tests.trainer.test_plan import ROOT
from trainer import import_model, tensor_file
from trainer.__main__ import main
from trainer.errors import Refused
from trainer.model import export
from trainer.model.huggingface import model_config

pytestmark = [pytest.mark.slow, pytest.mark.process]
NO_LIMIT = int(1e30)
DROPPED = (
    *("max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "head_dim"),
    *("rope_parameters", "attention_bias", "dtype"),
)


def change_json(folder, name="tokenizer_config.json", without=(), **more):
    path = folder / name
    said = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({key: one for key, one in {**said, **more}.items() if key not in without}))
    return folder


def inspect_model(folder):
    return init_model.resolve_import(str(folder), Settings.load(ROOT))


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("limit", [NO_LIMIT, 10**39, 1e30, None])
def test_a_length_without_a_limit_is_read_in_every_spelling(tmp_path, limit):
    folder = change_json(write(foreign("Qwen2", tmp_path, vocab=400), QWEN25, IM), model_max_length=limit)
    change_json(folder, "config.json", max_length=limit)
    change_json(folder, "special_tokens_map.json", eos_token="<|im_end|>", model_max_length=limit)
    assert template_of(folder) == QWEN25 and tokenizers.load(folder).chat is not None
    assert inspect_model(folder).own_chat
    with pytest.raises(UsageError, match="hidden_size"):
        inspect_model(change_json(folder, "config.json", hidden_size=NO_LIMIT))


@pytest.mark.parametrize(
    "spelt",
    [
        lambda folder: change_json(folder, eos_token="<|im_end|>", added_tokens_decoder={}),
        lambda folder: change_json(
            folder, eos_token={"__type": "AddedToken", "content": "<|im_end|>", "lstrip": False}
        ),
        lambda folder: change_json(
            change_json(folder, eos_token=None), "special_tokens_map.json", eos_token="<|im_end|>"
        ),
        lambda folder: change_json(folder, "special_tokens_map.json", eos_token={"content": "<|im_end|>"}),
        lambda folder: change_json(folder, extra_special_tokens=["<|user|>"], backend="tokenizers"),
        lambda folder: change_json(folder, extra_special_tokens={"image_token": "<|user|>"}),
        lambda folder: change_json(folder, additional_special_tokens=["<|user|>", "<|end|>"], unk_token=None),
        lambda folder: change_json(folder, without=("tokenizer_class", "pad_token", "model_max_length")),
        lambda folder: change_json(folder, "added_tokens.json", **{"<think>": 999}),
    ],
)
def test_named_tokens_are_those_of_transformers_however_they_are_spelt(tmp_path, spelt):
    from transformers import AutoTokenizer

    folder = spelt(write(tmp_path, MARKED, IM))
    theirs = AutoTokenizer.from_pretrained(folder)
    found = named_tokens(folder)
    assert {name: found.get(name) for name in ("bos_token", "eos_token", "pad_token", "image_token")} == {
        name: theirs.special_tokens_map.get(name) for name in ("bos_token", "eos_token", "pad_token", "image_token")
    }
    ours = tokenizers.load(folder)
    talk = [{"role": "user", "content": "reads"}]
    asked = theirs.apply_chat_template(talk, add_generation_prompt=True)["input_ids"]
    assert conversations.prompt(talk, ours) == asked


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3"])
def test_a_config_without_a_field_has_the_value_that_transformers_takes(tmp_path, kind):
    from transformers import AutoConfig

    folder = foreign(kind, tmp_path, head_dim=16)
    whole = json.loads((folder / "config.json").read_text())
    for name in DROPPED:
        said = {key: one for key, one in whole.items() if key != name}
        (folder / "config.json").write_text(json.dumps(said))
        theirs = AutoConfig.from_pretrained(folder)
        if name == "num_key_value_heads" and kind != "Llama":  # 32, which four heads cannot share.
            with pytest.raises(ValueError, match="heads"):
                model_config(said)
            continue
        ours = model_config(said)
        for key in ("max_position_embeddings", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings"):
            assert getattr(ours, key) == getattr(theirs, key), (name, key)
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"], name


def test_weights_keep_their_dtype_under_either_field_name(tmp_path):
    for number, (dtype, fields) in enumerate(
        (
            (torch.bfloat16, {"dtype": "bfloat16"}),
            (torch.bfloat16, {"torch_dtype": "bfloat16"}),
            (torch.bfloat16, {}),
            (torch.float16, {}),
            (torch.float32, {"dtype": "float32"}),
        )
    ):
        folder = foreign("Llama", tmp_path / str(number), dtype=dtype)
        change_json(folder, "config.json", without=("dtype", "torch_dtype"))
        change_json(folder, "config.json", **fields)
        found = import_model.stored_dtype(folder, export.read_config(folder))
        assert found == (dtype if dtype == torch.bfloat16 else torch.float32)


@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight"])
def test_tied_weights_stored_once_are_read_under_either_name(tmp_path, kept):
    folder = foreign("Qwen3", tmp_path)
    wanted = export.read(folder).head
    tensors = tensor_file.read(folder / "model.safetensors")
    tensors[kept] = tensors.pop("model.embed_tokens.weight")
    (folder / "model.safetensors").unlink()
    tensor_file.write(folder / "model.safetensors", tensors)
    change_json(folder, "config.json", _tied_weights_keys=["lm_head.weight"])
    assert torch.equal(export.read(folder).head, wanted)
    assert inspect_model(folder).model == export.read_config(folder)


def word_level(folder):
    from tokenizers import Tokenizer, models

    (folder / "tokenizer.json").write_text(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())


def write_vocabulary_gap(folder):
    write(folder, MARKED, IM)
    said = json.loads((folder / "tokenizer.json").read_text())
    vocab = said["model"]["vocab"]
    vocab[max(vocab, key=vocab.get)] += 5000
    (folder / "tokenizer.json").write_text(json.dumps(said))


def write_partial_chat_tokens(folder):
    gpt2_like(folder / "tokenizer.json")
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_special_tokens(["<|bos|>", "<|user_start|>"])
    made.save(str(folder / "tokenizer.json"))


def write_unnamed_template(folder):
    write(folder, [{"name": "tool_use", "template": QWEN25}], IM)


def write_empty_tokenizer(folder):
    (folder / "tokenizer.json").write_text("{}")


def write_changed(**fields):
    """Return a function that changes fields of tokenizer.json; a dict is merged into the field."""

    def make(folder):
        write(folder, MARKED, IM)
        said = json.loads((folder / "tokenizer.json").read_text())
        for name, value in fields.items():
            said[name] = {**said[name], **value} if isinstance(value, dict) else value
        (folder / "tokenizer.json").write_text(json.dumps(said))

    return make


def write_odd_json(name, text):
    def make(folder):
        write(folder, MARKED, IM)
        (folder / name).write_text(text)

    return make


def write_tokens(change):
    """Return a function that calls `change` with the added tokens and the vocabulary of a tokenizer.json."""

    def make(folder):
        write(folder, MARKED, IM)
        said = json.loads((folder / "tokenizer.json").read_text())
        change(said["added_tokens"], said["model"]["vocab"])
        (folder / "tokenizer.json").write_text(json.dumps(said))

    return make


def write_decoder(said):
    return lambda folder: change_json(write(folder, MARKED, IM), added_tokens_decoder=said)


def write_template(source):
    return lambda folder: write(folder, source, IM)


SPOKEN = "{% for m in messages %}{{ m.role + ': ' + m.content }}\n{% endfor %}"
TWICE = [{"id": 0, "content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": True}] * 2  # fmt: skip


@pytest.mark.day_cases(8)
@pytest.mark.parametrize(
    "make",
    [
        write_template("{% for m in messages %}{{ m.content | shout }}<|im_end|>{% endfor %}"),
        write_template(SPOKEN),
        write_odd_json("generation_config.json", "[]"),
        write_changed(model={"merges": ["a b"]}),
        word_level,
        write_vocabulary_gap,
        write_partial_chat_tokens,
        write_unnamed_template,
        write_empty_tokenizer,
        write_odd_json("generation_config.json", "{"),
        write_odd_json("special_tokens_map.json", "[1]"),
        write_changed(model={"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}),
        write_changed(model={"vocab": {}, "merges": []}, added_tokens=[]),
        write_changed(version="2.0"),
        write_changed(more=1),
        write_changed(added_tokens=TWICE),
        write_tokens(lambda added, vocab: added.append({**added[-1], "id": added[-1]["id"] + 1, "content": ""})),
        write_tokens(lambda added, vocab: added[-1].update(id=9999)),
        write_tokens(lambda added, vocab: added.insert(0, added.pop())),
        write_tokens(lambda added, vocab: vocab.update(zzzz=0)),
        write_decoder({"314": {"content": "<new>"}}),
        write_decoder({"3": "<|im_end|>"}),
        write_template("{% for m in messages %}{{ m.content }}"),
        write_template("{{ raise_exception('roles must alternate') }}"),
        write_template("{% for m in messages %}{{ m.content * 2 }}<|im_end|>{% endfor %}"),
        write_template("{% if add_generation_prompt %}{{ 1 // 0 }}{% endif %}" + MARKED),
        write_template("{% for m in messages %}{{ nothing(m) }}<|im_end|>{% endfor %}"),
    ],
)
def test_dry_run_refuses_the_folders_that_the_import_refuses(world, monkeypatch, capfd, make):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = foreign("Qwen2", world.root / "theirs", vocab=400)
    write(folder, MARKED, IM)
    spec = inspect_model(folder)
    (folder / "tokenizer_config.json").unlink()
    make(folder)
    own_chat = (folder / "tokenizer_config.json").is_file()
    making = replace(world.making("imported"), name="imported/theirs")
    file = configured(world, "import", making, replace(spec, own_chat=own_chat))
    assert main(["import", "--config", str(file)]) in (1, 2)
    assert "Traceback" not in capfd.readouterr().err
    with pytest.raises(UsageError, match=r"tokenizer\.json|chat template|generation_config|special_tokens_map"):
        inspect_model(folder)


def test_weights_beside_an_index_that_names_other_files_are_reported(tmp_path, monkeypatch):
    records = tmp_path / "records"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(records))
    folder = foreign("Qwen2", tmp_path / "model", vocab=400)
    import_model.report_unread(folder)
    assert not records.exists()
    header = model_files.header(folder / model_files.WEIGHTS)
    (folder / model_files.WEIGHTS).rename(folder / "a.safetensors")
    (folder / model_files.INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(header, "a.safetensors")}))
    (folder / model_files.WEIGHTS).write_bytes(b"an older download")
    import_model.report_unread(folder)
    assert "model.safetensors is not read, because model.safetensors.index.json" in records.read_text()
    assert export.read(folder).config.vocab_size == 400


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("kept", ["truncation", "padding"])
def test_lengths_for_batches_of_the_author_cut_and_pad_no_text(tmp_path, kept):
    folder = write(foreign("Qwen2", tmp_path, vocab=400), QWEN25, IM)
    text = "a text that is longer than four tokens"
    wanted = tokenizers.load(folder).encode(text)
    sizes = {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<|im_end|>"},
    }  # fmt: skip
    change_json(folder, "tokenizer.json", **{kept: sizes[kept]})
    found = tokenizers.load(folder)
    assert found.encode(text) == found.reference_ids(text, special=False) == wanted
    from transformers import AutoTokenizer

    assert AutoTokenizer.from_pretrained(folder).encode(text, add_special_tokens=False) == wanted


@pytest.mark.nightly
def test_token_that_only_added_tokens_json_knows_is_refused(tmp_path):
    folder = write(foreign("Qwen2", tmp_path, vocab=400), QWEN25, IM)
    change_json(folder, "added_tokens.json", **{"<new>": 314})
    with pytest.raises(UsageError, match="added_tokens.json gives '<new>' the id 314, and tokenizer.json no id"):
        inspect_model(folder)


@pytest.mark.nightly
def test_templates_named_in_an_object_are_read(tmp_path):
    folder = write(foreign("Qwen2", tmp_path, vocab=400), QWEN25, IM)
    change_json(folder, chat_template={"default": MARKED})
    assert template_of(folder) == MARKED and inspect_model(folder).own_chat


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    "more",
    [
        {"layer_types": ["full_attention", "linear_attention"]},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
    ],
)
def test_config_with_another_attention_is_refused(tmp_path, more):
    with pytest.raises(UsageError, match="layer_types|partial"):
        inspect_model(change_json(foreign("Qwen2", tmp_path, vocab=400), "config.json", **more))


def test_a_tensor_stored_in_two_files_is_refused(tmp_path):
    folder = foreign("Qwen2", tmp_path / "model", vocab=400)
    header = model_files.header(folder / model_files.WEIGHTS)
    (folder / model_files.WEIGHTS).rename(folder / "a.safetensors")
    tensor_file.write(folder / "b.safetensors", {"model.norm.weight": torch.zeros(header["model.norm.weight"].shape)})
    files = {**dict.fromkeys(header, "a.safetensors"), "model.norm.weight": "b.safetensors"}
    (folder / model_files.INDEX).write_text(json.dumps({"weight_map": files}))
    with pytest.raises(UsageError, match="model.norm.weight is stored in two files"):
        inspect_model(folder)
    with pytest.raises(Refused, match="model.norm.weight is stored in two files"):
        export.read(folder)


def test_dry_run_reads_the_template_files_of_the_hub(tmp_path, monkeypatch):
    folder = write(foreign("Qwen2", tmp_path, vocab=400), MARKED, IM)
    (folder / "chat_template.jinja").write_text(MARKED)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{% if %}")
    with serving({"them/tiny": FolderRepo(folder)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        find = partial(init_model.resolve_import, "hf://them/tiny", Settings.load(ROOT))
        assert find().own_chat
        (folder / "chat_template.jinja").write_text(SPOKEN)
        with pytest.raises(UsageError, match="hf://them/tiny: the chat template ends an answer with .* no token marks"):
            find()
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(UsageError, match="a template named default is missing"):
            find()
