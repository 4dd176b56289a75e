"""Stored changes of models: parameters that learn beside a frozen model, in a folder without the weights of the model.

    `PhaseConfig.change` -> `ModelChange.attach` -> training -> `ModelChange.write` -> a folder with a marker file
    a folder with a marker file + the changed model -> `ModelChange.apply` -> a whole model

A pack declares a `ModelChange` under `model_changes`, by the name of the marker file. Such a folder also holds the
shape and the tokenizer, and `CHANGED` names the changed model with a digest of the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from data.config import Input
from store import packs, untrusted_input
from store.artifacts import model_files, vocabulary, weight_digests
from store.artifacts.model_files import CHANGED
from store.untrusted_input import UnusableDocument
from trainer import tensor_file
from trainer.errors import Refused

KIND = "model_changes"
BASE = "base"  # link beside the `hf` folder of a change, to the folder of the changed model


@dataclass(frozen=True, kw_only=True)
class ChangedModel:
    """The model that a change belongs to."""

    name: str
    """Name of the artifact."""
    fingerprint: str
    weights_sha256: str
    """Digest of names and contents of the weight files."""
    source: str = ""
    """Address of an imported model, such as `hf://user/repo`."""
    revision: str = ""
    """Commit of an imported model of the hub."""
    altered: str = ""
    """Difference of the weights from the weights at `source`, such as rows for chat tokens; "" = none."""
    rounding: str = ""
    """Description of the rounding of the model in the training, by the kind of change; "" = as stored."""


class ModelChange:
    """The parameters that learn beside a frozen model, and the folder format of these parameters."""

    def compress(self, model: Any, config: Any, device: Any) -> None:
        """Replace weights of a frozen model by a smaller form on `device`, before `attach`; by default none.

        On the meta device, only the form counts.
        """

    def rounding(self, config: Any, dtype: Any) -> str:
        """Return the description of the rounding by `compress` for a model in `dtype`, for `ChangedModel.rounding`."""
        return ""

    def attach(self, model: Any, config: Any) -> None:
        """Add the parameters to a frozen model, without values.

        model: `trainer.model.decoder.Decoder`, also on the meta device; config: `trainer.config.PhaseConfig`.
        """
        raise NotImplementedError

    def initialize(self, model: Any, config: Any) -> None:
        """Set the parameters of `attach` to the initial values of the seed, with which the model is unchanged."""
        raise NotImplementedError

    def restore(self, model: Any, folder: Path) -> None:
        """Set the parameters of `attach` to the values in `folder`. Raises Refused for a different kind of change."""
        raise NotImplementedError

    def write(self, folder: Path, model: Any, config: Any, changed: ChangedModel) -> None:
        """Write the parameters and the marker file to `folder`."""
        raise NotImplementedError

    def apply(self, model: Any, folder: Path) -> None:
        """Add the change in `folder` to the weights of a whole model. Raises Refused for an unusable change."""
        raise NotImplementedError

    def variant_of(self, model: Any, folder: Path) -> Any:
        """Return a model with the change in `folder` that shares all other weights with `model`. Raises Refused."""
        raise NotImplementedError

    def merged(self, model: Any, earlier: Any = None) -> Any:
        """Return a decoder that computes as `model` does now, without the added parameters.

        Unchanged weights are shared with `model`. earlier: a former result, whose changed weights are overwritten.
        """
        raise NotImplementedError

    def vllm_rank(self, config: Any) -> int:
        """Return the rank of the parameters, by which vLLM reserves memory."""
        raise NotImplementedError

    def publish_imported(self, raw: Mapping[str, Any], making: Any) -> dict[str, Any]:
        """Publish an external change as an artifact, and return the facts about the artifact. Raises Refused.

        raw: the fields of `PhaseConfig.imported_change`; making: `data.config.StepContext`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class TrainedChange:
    """The change that a phase trains."""

    kind: ModelChange
    config: Any
    """`trainer.config.PhaseConfig`."""
    base: Input
    """Artifact of the changed model."""
    base_folder: Path

    @cached_property
    def changed(self) -> ChangedModel:
        """Return the record of the changed model; read all weights. Raises Refused."""
        return changed_model(self.base, self.base_folder)

    @property
    def vllm_rank(self) -> int:
        return self.kind.vllm_rank(self.config)

    def write(self, folder: Path, model: Any) -> None:
        """Write the learning parameters of a model, and the marker file."""
        self.kind.write(folder, model, self.config, self.changed)


def change_in(folder: Path) -> ModelChange | None:
    """Return the kind of change stored in a folder, or None for a folder with a whole model.

    Raises Refused for a change of a missing pack.
    """
    marker = next((one for one in packs.words(KIND) if (folder / one).is_file()), "")
    return kind_of(marker, str(folder)) if marker else None


def kind_of(marker: str, where: str) -> ModelChange:
    """Return the kind of change with this marker file. Raises Refused, with `where` in front, for an unknown kind."""
    known = packs.entries(KIND)
    if marker not in known:
        raise Refused(f"{where}: {packs.missing_pack_message(KIND, marker) or f'unknown kind of change {marker}'}")
    found: ModelChange = packs.load(known[marker])()
    return found


def base_of(folder: Path) -> Path:
    """Return the folder of the model that the change in `folder` belongs to. Raises Refused without the model."""
    found = folder.parent / BASE
    if not found.is_dir():
        about = read_changed(folder)
        raise Refused(
            f"{folder} holds a change of the model {about.name}, and no whole model. Give the name of the artifact "
            "instead of a folder, or write a whole model: inv export NAME --merge --out FOLDER"
        )
    return found / "hf" if (found / "hf" / "config.json").is_file() else found


def check_base(folder: Path, base: Path) -> None:
    """Raise Refused if the change in `folder` belongs to other weights than the weights in `base`."""
    about = read_changed(folder)
    if (found := weights_digest(base)) != about.weights_sha256:
        raise Refused(
            f"{folder} changes {about.name} with weights {about.weights_sha256[:12]}, but the weights in {base} are "
            f"{found[:12]}. Use the model of the training, or train the change again"
        )


def read_changed(folder: Path) -> ChangedModel:
    """Return the model that the change in `folder` belongs to. Raises Refused."""
    try:
        said = model_files.load(folder, CHANGED)
        return ChangedModel(
            **{one.name: untrusted_input.typed(said, one.name, str, "") for one in fields(ChangedModel)}
        )
    except FileNotFoundError:
        raise Refused(f"{folder}: {CHANGED}, which names the changed model, is missing") from None
    except UnusableDocument as error:
        raise Refused(f"{folder}: {CHANGED}: {error}") from None


def rounding_difference(folder: Path, rounding: str) -> str:
    """Return the difference between the rounding of the model under the change in `folder`, and `rounding`; "" = none.

    Raises Refused.
    """
    before = read_changed(folder).rounding if (folder / CHANGED).is_file() else ""
    if before == rounding:
        return ""
    words = [f"a model rounded from {one}" if one else "the unrounded model" for one in (before, rounding)]
    return f"the change was trained beside {words[0]}, and continues beside {words[1]}"


def changed_model(base: Input, folder: Path) -> ChangedModel:
    """Return the record of the artifact `base`, with its files in `folder`, as the model that a change belongs to.

    Raises Refused.
    """
    told = vocabulary.about_of(folder).get("import")
    told = told if isinstance(told, Mapping) else {}
    origin = {name: str(told.get(name, "")) for name in ("source", "revision")}
    if told.get("format"):
        origin["altered"] = f"converted from {told['format']}"
    elif told.get("own_chat") is False:
        origin["altered"] = "rows for chat tokens"
    hf = folder / vocabulary.HF if (folder / vocabulary.HF / "config.json").is_file() else folder
    return ChangedModel(name=base.name, fingerprint=base.fingerprint, weights_sha256=weights_digest(hf), **origin)


def write_changed(folder: Path, about: ChangedModel) -> None:
    (folder / CHANGED).write_text(json.dumps(asdict(about), indent=1) + "\n", encoding="utf-8")


def weights_digest(folder: Path) -> str:
    """Return the sha256 over names and digests of the weight files in a model folder. Raises Refused."""
    try:
        return weight_digests.digest(folder, tensor_file.sha256)
    except UnusableDocument as error:
        raise Refused(str(error)) from None
