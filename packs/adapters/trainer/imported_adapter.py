"""The step `import` for adapters: an adapter of another training becomes an artifact beside the start model.

The artifact holds the adapter, the shape and the tokenizer, as the artifact of a phase that trains an adapter. The step
reads every number, and compares the adapter with the plan, with the weights of the model if the adapter names them, and
with the vocabulary.
"""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.config import StepContext, load
from data.errors import ConfigError
from packs.adapters.records.lora_config import ImportedAdapter
from packs.adapters.records.peft_format import CONFIG, WEIGHTS, content_digest, shape_of
from packs.adapters.trainer import lora
from store.artifacts import model_files, vocabulary
from store.artifacts.artifacts import Store
from store.artifacts.model_files import CHANGED
from store.untrusted_input import UnusableDocument
from trainer.errors import Refused
from trainer.import_model import fetch, stored_dtype
from trainer.model import changes, export
from trainer.run import open_input, work_folder

STORE = "store://"
WANTED = tuple(
    f"{folder}{one}" for folder in ("", f"{vocabulary.HF}/") for one in (CONFIG, WEIGHTS, CHANGED, vocabulary.TOKENIZER)
)
TOKENIZER = "tokenizer"  # role of an input; the other role is the model


class StoredLora(lora.Lora):
    """LoRA adapters as a stored change of a model, with the import of adapters of other trainings."""

    def publish_imported(self, raw: Mapping[str, Any], making: StepContext) -> dict[str, Any]:
        return publish(load(ImportedAdapter, raw, "spec"), making)


def publish(spec: ImportedAdapter, making: StepContext) -> dict[str, Any]:
    """Fetch the adapter, check and publish it, and return the facts about the artifact.

    Raises Refused, ConfigError, StoreError.
    """
    if spec.source.startswith(STORE):
        folder = export.folder_of_model(Store(making.store).path(spec.source.removeprefix(STORE), spec.revision))
    else:
        folder = fetch(spec, WANTED)
        folder = folder / vocabulary.HF if (folder / vocabulary.HF / CONFIG).is_file() else folder
    role = next(one for one in making.inputs if one != TOKENIZER)
    base, words = (open_input(making, one) for one in (role, TOKENIZER))
    hf = export.folder_of_model(base)
    stored, _ = lora.read(folder)
    config = export.read_config(hf)
    try:
        found = shape_of(stored, model_files.header(model_files.held(folder, WEIGHTS)))
        is_same = not spec.content or content_digest(folder) == spec.content
        if (stored, *found) != (spec.adapter, spec.layers, spec.sides) or not is_same:
            raise Refused(f"{folder}: the adapter has changed since the plan; plan again")
        spec.check(stored, config)
        if wrong := vocabulary.difference(folder, words):
            raise Refused(f"{folder}: the adapter was trained with another vocabulary: {wrong}")
    except (ConfigError, UnusableDocument) as error:
        raise Refused(f"{folder}: {error}") from None
    of = changes.changed_model(making.inputs[role], base)
    if (folder / CHANGED).is_file():
        changes.check_base(folder, hf)
        of = replace(of, rounding=changes.read_changed(folder).rounding)
    work_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=work_folder(), prefix=".import-") as scratch:
        draft = Path(scratch) / "draft"
        inner = draft / vocabulary.HF
        export.write_without_weights(inner, config, words, stored_dtype(hf, config), {"model_change": True})
        shutil.copyfile(model_files.held(folder, WEIGHTS), inner / WEIGHTS)
        lora.write_config(inner, stored, of)
        changes.write_changed(inner, of)
        theirs = vocabulary.about_of(base)
        names = ("vocab", "tokenizer_sha256", "context", "document_masks")
        about = {
            **{name: theirs[name] for name in names if name in theirs},
            "params": config.num_params,
            "source": spec.source,
            "revision": spec.revision,
            "changes": {"name": of.name, "fingerprint": of.fingerprint},
        }
        Store(making.store).publish(draft, making.name, making.fingerprint, {**about, **making.provenance})
    return about
