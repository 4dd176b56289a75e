"""The model in `--teacher`, described before the plan: an artifact of the store, a repository of the hub, a server."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from data.errors import ConfigError
from infra.errors import UsageError
from infra.settings import Settings
from packs.preferences.control.flags import PreferenceFlags
from packs.preferences.records.opd_config import Teacher
from store import untrusted_input
from store.artifacts import model_files
from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from store.manifest import StoreError, check_name
from store.untrusted_input import UnusableDocument
from trainer.config import ImportSpec
from trainer.model.huggingface import model_config

HUB, STORE, SERVERS = "hf://", "store://", ("http://", "https://")


@dataclass(frozen=True, kw_only=True)
class ResolvedFlags(PreferenceFlags):
    """The flags, with the description of the teacher."""

    model: Teacher


def resolve(flags: PreferenceFlags, settings: Settings, init: ImportSpec | None) -> PreferenceFlags:
    """Return the flags with the description of the teacher. Raises UsageError for a model that cannot teach."""
    typed = flags.teacher
    if not typed:
        return flags
    try:
        if typed.startswith(SERVERS):
            found = of_server(typed)
        else:
            found = of_hub(typed) if typed.startswith(HUB) else of_store(typed, settings.store)
    except (ConfigError, UnusableDocument, StoreError) as error:
        raise UsageError(f"--teacher {typed}: {error}") from None
    return ResolvedFlags(pairs=flags.pairs, teacher=typed, model=found)


def of_server(typed: str) -> Teacher:
    """Return the description of a served model; the server is asked by the training only. Raises UsageError."""
    address, _, model = typed.partition("#")
    at = urlsplit(address)
    if not at.hostname or at.username or at.query or not model:
        raise UsageError(
            f"--teacher {typed.rpartition('@')[2]}: expected http://HOST:PORT/v1#MODEL; the key of the server belongs "
            "in SLIPWAY_TEACHER_KEY"
        )
    return Teacher(source=address.rstrip("/"), revision="", params=0, model=model)


def of_store(typed: str, store: str) -> Teacher:
    """Return the description of an artifact. Raises UsageError, StoreError."""
    if "://" in typed or Path(typed).expanduser().is_dir():
        raise UsageError(
            f"--teacher {typed}: expected hf://user/repo, http://HOST:PORT/v1#MODEL, or the name of an artifact. To "
            "make an artifact of a folder: inv launch --phase sft --init FOLDER"
        )
    check_name(typed)
    found = Store(store).check(typed)
    if found.problem:
        raise StoreError(f"{store}: {found.problem}; the artifacts are listed by: inv ckpt.list")
    if found.about.get("changes"):
        raise UsageError(
            f"--teacher {typed}: the artifact is an adapter, and the teacher is a whole model. Write the whole model, "
            f"and name a repository with it: inv export {typed} --merge"
        )
    params = found.about.get("params")
    if type(params) is not int:
        raise UsageError(f"--teacher {typed}: the artifact is not a model")
    return Teacher(source=f"{STORE}{typed}", revision=found.fingerprint, params=params)


def of_hub(typed: str) -> Teacher:
    """Return the description of a repository. Raises UsageError, ConfigError, UnusableDocument, StoreError."""
    repo = typed.removeprefix(HUB).strip("/").partition("@")[0]
    if repo.count("/") != 1:
        raise UsageError(f"--teacher {typed}: expected hf://user/repo or hf://user/repo@revision")
    place = open_place(typed)
    at = place.current_revision()
    if model_files.CONFIG not in place.listing(at=at):
        raise UnusableDocument(f"the repository is not a model: {model_files.CONFIG} is missing")
    said = untrusted_input.mapping(place.read_small(model_files.CONFIG, at), model_files.CONFIG_BYTES)
    return Teacher(source=f"{HUB}{repo}", revision=at, params=model_config(said).num_params)
