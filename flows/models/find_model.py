"""The lookup of a model by name, phase, tag or folder, and the check for llama.cpp support."""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.models.changed_model import is_change, joined_folder
from flows.models.init_model import is_foreign
from infra.errors import UsageError
from infra.runs.timing import Say
from infra.settings import Settings
from store.artifacts import model_files, vocabulary
from store.artifacts.artifacts import Store
from store.artifacts.tokenizer_files import template_of
from store.manifest import Artifact
from trainer.model.huggingface import model_config
from trainer.plan import profile_named
from trainer.recipes import PROFILES
from trainer.records.model_config import ModelConfig
from trainer.records.phase_registry import PHASES, USUAL, all_phases

GGUF_TYPES = ("tq2_0", "q8_0", "f16", "bf16", "f32")
FOREIGN = (
    "the GGUF export writes Slipway's own tokenizers only, and this model has a different tokenizer; use "
    "llama.cpp's converter"
)


def model_folder(settings: Settings, model: str, tag: str, tell: Say, first: Sequence[str] = ()) -> Path:
    """Return the folder of the requested model; see `find_model`. Raise UsageError."""
    return find_model(settings, model, tag, tell, first)[1]


def find_model(
    settings: Settings, model: str, tag: str, tell: Say, first: Sequence[str] = ()
) -> tuple[Artifact | None, Path]:
    """Return the artifact of the requested model (None for a folder of the user) and the folder with the files.

    model: a phase, the name of an artifact, a tag or a folder. first: phases to prefer over the last standard phase
    when no model is named. Without a tag, if the profile has no such model and was not chosen by the user, return the
    newest model with any tag. Raise UsageError with the available models.
    """
    store = Store(settings.store)
    # Include phases of extensions, so that users can talk to the models without naming the phase.
    found = {one.name: one for one in store.artifacts() if one.name.partition("/")[0].endswith("_checkpoints")}
    whole = {name: one for name, one in found.items() if not one.problem}
    tags = {name.partition("/")[2] for name in found}
    if model in tags and not (tag or model in found or model in PHASES or Path(model).expanduser().is_dir()):
        model, tag = "", model
    phases = (model,) if model in PHASES else (*first, *all_phases()[::-1])
    if not tag and (not model or model in PHASES):
        tag = usual_tag(settings, phases, found, tell)
    usual_name = profile_named(settings.profile).name
    tag = tag or usual_name
    typed = f" --{'profile' if tag in PROFILES else 'tag'} {shlex.quote(tag)}" if tag != usual_name else ""
    wanted = [model] if model and model not in PHASES else [f"{PHASES[phase].folder}/{tag}" for phase in phases]
    usual = f"{PHASES[USUAL].folder}/{tag}"
    for name in wanted:
        if name in whole:
            if not model and wanted.index(name) > wanted.index(usual):  # a fallback: the usual model is missing
                why = f"damaged ({found[usual].problem})" if usual in found else "not made yet"
                what = (
                    "a base model, which continues text and is not trained to answer"
                    if wanted[-1] == name
                    else "an intermediate model"
                )
                make = f"./inv launch --phase {USUAL}{typed}"
                tell(f"{usual} is {why}; using {name} instead, {what}. To make {usual}: {make}")
            return whole[name], joined_folder(store, whole[name])
    if model and Path(model).expanduser().is_dir():
        return None, Path(model).expanduser().absolute()
    damaged = [f"{name} is damaged ({found[name].problem})" for name in wanted if name in found]
    near = difflib.get_close_matches(wanted[0] if model else usual, [*whole, *sorted(tags)], 3)
    known = (
        f"available: {', '.join(near or sorted(whole))}"
        if whole
        else f"the store holds no model yet; to make a model: ./inv launch --phase {USUAL}"
    )
    raise UsageError(f"no model {model or tag!r} in {settings.store}; {'; '.join([*damaged, known])}")


def usual_tag(settings: Settings, phases: Sequence[str], found: Mapping[str, Artifact], tell: Say) -> str:
    """Return the default tag: the tag of the profile, else the tag of the newest model of the phases."""
    usual = profile_named(settings.profile).name
    of_phases = {PHASES[phase].folder for phase in phases}
    models = [one for name, one in found.items() if name.partition("/")[0] in of_phases]
    whole = [one for one in models if not one.problem]
    is_chosen = not settings.sources["profile"].startswith("default")
    if is_chosen or not whole or any(one.name.partition("/")[2] == usual for one in models):
        return usual
    newest = max(whole, key=lambda one: one.published_at).name.partition("/")[2]
    tell(f"no model of {usual} in {settings.store}; using the newest model of the store, {newest}")
    return newest


def shape_of(folder: Path) -> ModelConfig:
    """Return the shape of the model in `folder` or `folder/hf`. Raise OSError or ValueError."""
    return model_config(model_files.load(files_of(folder)))


def gguf_problem(folder: Path, config: ModelConfig, kind: str = "") -> str:
    """Return why a model cannot be exported as GGUF, or "". kind: GGUF type; "" = the default for the shape."""
    files = files_of(folder)
    if is_change(files):
        return "the artifact holds a change of another model; write a whole model first: inv export NAME --merge"
    problem = config.gguf_problem(kind or config.gguf_type)
    return problem or (FOREIGN if is_foreign(template_of(files)) or vocabulary.has_pieces(files) else "")


def files_of(folder: Path) -> Path:
    """Return the Hugging Face folder: `folder` itself, or `hf/` in a published artifact."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder
