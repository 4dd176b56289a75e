"""The step `import`: publish an external model as an artifact for mid and sft.

The artifact is a Hugging Face folder. Weights stored in bfloat16 stay bfloat16; others become float32. A model with a
chat template keeps template, stop tokens and ids. For other models the step adds Slipway's chat tokens, grows the
embedding if needed, and initializes new rows with the mean of the old rows to avoid outliers. A model without a
tokenizer uses the artifact `tokenizer`.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.config import StepContext
from data.errors import InputError
from data.events import emit
from data.tokens import bpe
from data.tokens import tokenizer as tokenizers
from data.tokens.chat_template import Dialogue
from data.tokens.tokenizer import SPECIALS
from data.tokens.untrusted import limited_tokenizer, sentencepiece_file
from store import packs, untrusted_input
from store.artifacts import model_files, sentencepiece, tokenizer_files, vocabulary
from store.artifacts.artifacts import Store
from trainer.config import ImportSpec
from trainer.errors import Refused
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.model.huggingface import shapes
from trainer.records import model_formats
from trainer.records.model_config import ModelConfig
from trainer.run import open_input, work_folder

WORDS = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    "generation_config.json",
)
TEMPLATES = (tokenizer_files.TEMPLATE_FILE, f"{tokenizer_files.TEMPLATE_FOLDER}/*{tokenizer_files.TEMPLATE_SUFFIX}")
PIECES = (sentencepiece.FILE, vocabulary.ADDED)
WANTED = ("config.json", "*.safetensors", "*.safetensors.index.json", *WORDS, *PIECES, *TEMPLATES)
PROBE = (
    "It's 12345 tokens:\n\n  caf\u00e9 \u65e5\u672c <|im_end|> \tdef f(x): return x**2  \n"  # tokenizers differ here
)
TALK = [
    {"role": "user", "content": "How are  you?"},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "And\nnow?"},
    {"role": "assistant", "content": "Well, still."},
]
ROWS = 64  # a grown embedding has a multiple of this many rows, for fast products


def run(spec: ImportSpec, making: StepContext) -> dict[str, Any]:
    """Fetch the model, add chat tokens if needed, publish, and return the facts about the artifact.

    Raises Refused, ConfigError, DataError, StoreError.
    """
    convert = packs.load(model_formats.find_format(spec.format).convert) if spec.format else None
    work_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_folder(), prefix=".import-") as scratch:
        source, words, draft = fetch(spec), Path(scratch) / "tokenizer", Path(scratch) / "draft"
        if convert is not None:
            source = convert(spec, source, Path(scratch) / "converted")
        report_unread(source)
        model = export.read(source)
        dtype = stored_dtype(source, model.config)
        if odd := [name for name, one in model.state_dict().items() if not one.isfinite().all()]:
            raise Refused(
                f"{spec.source}: {', '.join(odd[:5])} have values that are not finite. Download the model again"
            )
        own = own_words(source, Path(scratch) / "own") if spec.has_tokenizer else source
        if spec.own_chat:
            copy_tokenizer(own, words)
            new = []
        elif spec.has_tokenizer:
            new = with_chat_tokens(own / "tokenizer.json", words)
        else:
            shutil.copytree(open_input(making, "tokenizer"), words)
            new = []
        size = tokenizers.load(words).vocab_size
        config, weights = grown(model, size, new)
        export.write(draft, config, weights, words, dtype)
        about = {
            "source": spec.source,
            "revision": spec.revision,
            "params": config.num_params,
            "vocab": size,
            "tokenizer_sha256": tokenizers.load(words).sha256,
            "import": asdict(spec),
        }
        Store(making.store).publish(draft, making.name, making.fingerprint, {**about, **making.provenance})
    return about


def fetch(spec: Any, patterns: Sequence[str] = WANTED) -> Path:
    """Return the local folder of a record with `source` and `revision`, downloading `hf://` into the hub's cache.

    Raises Refused.
    """
    if not spec.source.startswith("hf://"):
        if not (folder := Path(spec.source)).is_dir():
            raise Refused(
                f"{folder} does not exist on this machine, and the machine that runs the steps imports the folder"
            )
        return folder
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    emit("note", text=f"fetching {spec.source} at {spec.revision[:12]}")
    try:
        found = huggingface_hub.snapshot_download(
            spec.source.removeprefix("hf://"),
            revision=spec.revision,
            allow_patterns=list(patterns),
            token=os.environ.get("HUGGINGFACEHUB_API_TOKEN") or os.environ.get("HF_TOKEN"),
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise Refused(f"{spec.source} at {spec.revision}: {' '.join(str(error).split())}") from None
    return Path(found)


def report_unread(folder: Path) -> None:
    """Report a `model.safetensors` that the index of the weights does not name, and that is therefore not read."""
    whole = folder / model_files.WEIGHTS
    if whole.is_file() and whole.name not in {one.name for one in model_files.weight_files(folder)}:
        text = f"{whole} is not read, because {model_files.INDEX} beside it names other files"
        emit("note", text=f"{text}. Remove the file that is not the model", alarm=True)


def stored_dtype(folder: Path, config: ModelConfig) -> torch.dtype:
    """Return bfloat16 for weights stored in bfloat16, else float32.

    Read the dtype from the config, or from the file headers for old configs without a dtype. Masters decoded from
    stored symbols are float32, the only dtype preserving their scale.
    """
    raw = model_files.load(folder)  # already validated as a config
    if any(one.has_coded_weights(raw) for one in config.features):
        return torch.float32
    said = raw.get("dtype") or raw.get("torch_dtype")
    if said is None:
        stored = {one.dtype for file in model_files.weight_files(folder) for one in model_files.header(file).values()}
        return torch.bfloat16 if stored == {"BF16"} else torch.float32
    return torch.bfloat16 if str(said).removeprefix("torch.") == "bfloat16" else torch.float32


def own_words(source: Path, folder: Path) -> Path:
    """Return a folder with tokenizer.json: `source`, or `folder` after converting a lone tokenizer.model into it.

    Raises Refused, DataError.
    """
    if (source / vocabulary.TOKENIZER).is_file() or not (source / sentencepiece.FILE).is_file():
        return source
    folder.mkdir()
    try:
        for name in (*WORDS[1:], *PIECES, "config.json"):
            if (source / name).is_file():
                shutil.copyfile(model_files.held(source, name), folder / name)
        tokenizer_files.copy_template_files(source, folder)
        sentencepiece_file.write(folder)
    except (untrusted_input.UnusableDocument, InputError) as error:
        raise Refused(f"{source / sentencepiece.FILE}: {error}") from None
    return folder


def copy_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer and the chat template of `source` to the new `folder`, keeping all ids.

    For a SentencePiece tokenizer, replace `tokenizer_class` by the generic class: with the original class, transformers
    would build a different tokenizer from the file. Raises Refused for an unsupported kind of tokenizer or ids
    different from the reference implementation, DataError.
    """
    folder.mkdir()
    for name in (*WORDS, "config.json"):  # some models name the stop token only in config.json
        try:
            if (source / name).is_file():
                shutil.copyfile(model_files.held(source, name), folder / name)
        except untrusted_input.UnusableDocument as error:
            raise Refused(f"{source / name}: {error}") from None
    try:
        tokenizer_files.copy_template_files(source, folder)
    except untrusted_input.UnusableDocument as error:
        raise Refused(str(error)) from None
    path = folder / "tokenizer.json"
    _refuse(path.read_bytes(), source / path.name, keeps_ids=True)
    kept = tokenizers.load(folder)
    is_same = kept.encode(PROBE) == kept.reference_ids(PROBE, special=False)
    if kept.has_pieces and kept.chat is not None:
        config = tokenizer_files.load_if_present(folder, tokenizer_files.TOKENIZER_CONFIG)
        config = {name: one for name, one in config.items() if name != "auto_map"}
        made = json.dumps({**config, "tokenizer_class": "PreTrainedTokenizerFast"}, indent=1)
        (folder / tokenizer_files.TOKENIZER_CONFIG).write_text(made, encoding="utf-8")
        talk = Dialogue(TALK)
        kept.inner.encode_special_tokens = False
        whole = kept.inner.encode(kept.chat.text(talk), add_special_tokens=False).ids
        is_same = is_same and kept.chat.rows(talk)[-1][0] == whole
    if not is_same:
        raise Refused(f"{source / path.name}: the tokenizer splits text in an unsupported way")


def _refuse(raw: bytes, path: Path, keeps_ids: bool) -> None:
    if wrong := vocabulary.import_problem(raw, SPECIALS, keeps_ids):
        raise Refused(f"{path}: {wrong}")


def with_chat_tokens(path: Path, folder: Path) -> list[int]:
    """Write the tokenizer of `path` with Slipway's special tokens as last ids into `folder`; return the new ids.

    A tokenizer adding a space only before the first text is changed to add the space before every text, because a text
    begins after each special token. Raises Refused for an unsupported kind of tokenizer.
    """
    import tokenizers as library

    try:
        raw = untrusted_input.content(model_files.held(path.parent, path.name), tokenizers.TOKENIZER_BYTES)
        _refuse(raw, path, keeps_ids=False)
        if not sentencepiece.is_pieces(json.loads(raw)):
            limited_tokenizer.of_untrusted(raw)  # parse untrusted input in a child process first
        made = library.Tokenizer.from_str(sentencepiece.led_always(raw.decode()))
    except Refused:
        raise
    except Exception as error:  # the library raises bare Exception for unreadable files
        raise Refused(f"{path} is not a tokenizer: {str(error)[:200]}") from None
    before = made.get_vocab_size()
    new = [name for name in SPECIALS if made.token_to_id(name) is None]
    made.add_special_tokens([library.AddedToken(name, special=True, normalized=False) for name in new])
    made.post_processor = None  # it adds the model's own BOS, and Slipway's texts begin with <|bos|>
    bpe.save(made, folder)
    kept = tokenizers.load(folder)  # raises DataError unless the specials are the last ids
    if kept.encode(PROBE) != kept.reference_ids(PROBE, special=False):
        raise Refused(f"{path}: the tokenizer splits text in an unsupported way")
    return list(range(before, before + len(new)))


def grown(model: Decoder, size: int, new: list[int]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the shape and weights with embeddings and head grown to at least `size` rows (a multiple of ROWS).

    Rows of `new` ids, and rows added as padding, are the mean of the old rows.
    """
    rows = model.config.vocab_size
    if size > rows:
        rows = -(-size // ROWS) * ROWS
    weights = dict(model.state_dict())
    larger = dict(shapes(replace(model.config, vocab_size=model.config.vocab_size + 1)))
    for name in [name for name, shape in shapes(model.config) if shape != larger[name]]:  # a row for each id
        if new or rows > model.config.vocab_size:
            old = weights[name]
            known = old[: new[0]] if new else old
            fresh = known.mean(dim=0).repeat(rows, 1)
            fresh[: len(old)] = old
            fresh[new] = known.mean(dim=0)
            weights[name] = fresh
    return replace(model.config, vocab_size=rows), weights
