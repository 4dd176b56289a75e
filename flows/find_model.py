"""The model that the user means by a name, a phase, a tag or a folder."""

import difflib
import shlex
from pathlib import Path

from infra.errors import UsageError
from infra.runs.timing import Say
from infra.settings import Settings
from store import Artifact, Store
from trainer.plan import CHECKPOINTS, profile_named
from trainer.recipes import PROFILES


def model_folder(settings: Settings, model: str, tag: str, tell: Say) -> Path:
    """Where the model lies that the user means. Raises UsageError."""
    return find_model(settings, model, tag, tell)[1]


def find_model(settings: Settings, model: str, tag: str, tell: Say) -> tuple[Artifact | None, Path]:
    """The artifact that the user means by a model, None for a folder of theirs, and where it lies.

    Raises UsageError that lists those there are.
    """
    store = Store(settings.store)
    found = {one.name: one for one in store.artifacts() if one.name.split("/")[0] in CHECKPOINTS.values()}
    whole = {name: one for name, one in found.items() if not one.problem}
    typed = f" --{'profile' if tag in PROFILES else 'tag'} {shlex.quote(tag)}" if tag else ""
    tag = tag or profile_named(settings.profile).name
    if model in CHECKPOINTS:
        wanted = [f"{CHECKPOINTS[model]}/{tag}"]
    else:
        wanted = [model] if model else [f"{CHECKPOINTS[phase]}/{tag}" for phase in ("sft", "mid", "base")]
    for name in wanted:
        if name in whole:
            if not model and name != wanted[0]:  # the model that is meant is not there
                why = f"damaged ({found[wanted[0]].problem})" if wanted[0] in found else "not made yet"
                what = (
                    "which goes on with text and has not learnt to answer" if wanted[-1] == name else "half-way to it"
                )
                make = f"./inv launch --phase sft{typed}"
                tell(f"{wanted[0]} is {why}; this is {name}, {what}; to make it: {make}")
            return whole[name], store.path(name, whole[name].fingerprint)
    if model and Path(model).expanduser().is_dir():
        return None, Path(model).expanduser().absolute()
    damaged = [f"{name} is damaged ({found[name].problem})" for name in wanted if name in found]
    near = difflib.get_close_matches(wanted[0], whole, 3)
    known = (
        f"available: {', '.join(near or sorted(whole))}"
        if whole
        else "there is none yet; make one with: ./inv launch --phase sft"
    )
    raise UsageError(f"no model {model or tag!r} in {settings.store}; {'; '.join([*damaged, known])}")
