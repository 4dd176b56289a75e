"""Adapters of a service: the flag of `serve.up`, and the check of an adapter before an engine loads it."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from data.errors import ConfigError
from flows.services import variants
from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.runs.timing import Say
from infra.settings import Settings
from packs.adapters.control import adapter_words
from packs.adapters.control.imported_adapter import (
    COMMIT_LENGTH,
    HUB,
    OURS,
    STORE,
    OtherCommit,
    check_names,
    files_of,
    inner_folder,
    read,
)
from packs.adapters.records.lora_config import ImportedAdapter
from serve.engine import models
from serve.policy import service_state
from serve.policy.service_state import ServiceRecord, WantedService
from serve.processes import controller_client
from serve.variants import Variant, VariantFlags, vllm_rank
from store import untrusted_input
from store.artifacts import model_files, vocabulary, weight_digests
from store.artifacts.artifacts import Store
from store.artifacts.model_files import CHANGED
from store.backends.backend import Backend, ListedFile, open_place
from store.manifest import MANIFEST, Manifest, NoStore, StoreError
from store.untrusted_input import UnusableDocument, printable_line
from trainer.model.huggingface import model_config


def read_named(words: Sequence[str]) -> Mapping[str, str]:
    """Return the adapter by name in NAME=ADAPTER words. Raises UsageError."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, source = word.partition("=")
        if not equals or not name or not source:
            raise UsageError(f"{word}: expected NAME=ADAPTER, such as legal=chatsft_checkpoints/legal")
        if name in found:
            raise UsageError(f"{word}: the name {name} stands for {found[name]} already")
        found[name] = source
    return MappingProxyType(found)


@dataclass(frozen=True, kw_only=True)
class ServedAdapterFlags(VariantFlags):
    """The flag of `serve.up`."""

    adapter: Mapping[str, str] = flag(
        {},
        "adapter with a name for clients, who choose by `model`: an artifact, a folder or hf://user/repo; repeatable",
        unit="NAME=ADAPTER",
        read=read_named,
    )

    def named(self) -> Mapping[str, str]:
        return self.adapter

    def resolve(self, source: str, model: str, settings: Settings) -> Variant:
        return resolve(source, model, settings)


def resolve(typed: str, model: str, settings: Settings) -> Variant:
    """Return the variant for an adapter in a folder or at an address. Raises UsageError if the adapter does not fit.

    Shape, vocabulary and chat template must fit `model`. The weights must equal the weights of the training as far as
    the adapter describes the training: by a digest, or by the name and the commit of a model of the hub.
    """
    try:
        found, commit = read(typed, settings.store)
        if found.source.startswith(HUB):
            place = f"{found.source}@{found.revision}"
        elif found.source.startswith(STORE):
            name = found.source.removeprefix(STORE)
            place = str(files_of(Store(settings.store).path(name, found.revision)).absolute())
        else:
            place = str(files_of(Path(found.source)))
        if "://" in model:
            check_address(found, commit, place, model)
        else:
            check_model(found, commit, place, Path(model))
        adapter_words.check(place, model)
    except (ConfigError, UnusableDocument, StoreError) as error:
        raise UsageError(f"the adapter {typed}: {error}") from None
    return Variant(
        source=place,
        identity=f"{place} {found.content or found.revision}",
        title=found.source.removeprefix(STORE),
        rank=found.adapter.rank,
    )


def check_model(found: ImportedAdapter, commit: str, place: str, model: Path) -> None:
    """Raise ConfigError for an adapter of another model than the model in a folder; UnusableDocument."""
    try:
        shape = model_config(model_files.load(model))
    except (ConfigError, OSError):
        return  # a model that only the engine supports, or a scripted model
    found.check(found.adapter, shape)
    if not has_weights(changed_by(place), str(model), lambda: weight_digests.digest(model, _sha256)):
        check_import(found, commit, vocabulary.about_of(model))


def has_weights(changed: Mapping[str, Any], model: str, digest: Callable[[], str]) -> bool:
    """Return whether `changed_model.json` of an adapter names the weights of a model. Raises ConfigError for others."""
    wanted = untrusted_input.typed(changed, "weights_sha256", str, "")
    if wanted and (own := digest()) != wanted:
        name = untrusted_input.printable(str(changed.get("name")))
        raise ConfigError(
            f"the adapter changes {name} with weights {wanted[:12]}, and the weights of {model} are {own[:12]}; serve "
            "the model of the training"
        )
    return bool(wanted)


def check_import(found: ImportedAdapter, commit: str, about: Mapping[str, Any]) -> None:
    """Raise ConfigError for an adapter of another model of the hub than the import that the facts `about` describe."""
    said = about.get("import")
    if not isinstance(said, Mapping) or not (source := str(said.get("source", ""))).startswith(HUB):
        return
    revision = str(said.get("revision", ""))
    try:
        check_names(found, commit, "--model", source, revision)
    except OtherCommit:
        then, now = (weights_at(source, one) for one in (commit, revision))
        if not then or then != now:
            raise


def check_address(found: ImportedAdapter, commit: str, place: str, model: str) -> None:
    """Raise ConfigError for an adapter that does not fit the model at an address. Raises UsageError, StoreError."""
    config, _ = models.remote_config(model)
    try:
        shape = model_config(config)
    except ConfigError:
        return  # a model that only the engine supports
    found.check(found.adapter, shape)
    about, there = changed_by(place), open_place(model)
    if model.startswith(HUB) and not commit and not about.get("weights_sha256"):
        check_hub(found, commit, about, model, {}, {})
        return
    at = there.current_revision()
    listed = there.listing(at=at)
    if MANIFEST in listed:
        try:
            manifest = Manifest.from_json(there.read_small(MANIFEST, at))
        except ValueError as error:
            raise StoreError(f"{model}: {error}") from None
        inside = f"{OURS}/" if f"{OURS}/{models.CONFIG}" in listed else ""
        if has_weights(about, model, lambda: weight_digests.digest_at(there, inside, manifest, at)):
            return
        check_import(found, commit, manifest.about)
    if model.startswith(HUB):
        then = weight_versions(there, there.listing(at=commit), commit) if commit else {}
        check_hub(found, commit, about, model, then, weight_versions(there, listed, at))


def check_hub(
    found: ImportedAdapter,
    commit: str,
    about: Mapping[str, Any],
    model: str,
    then: Mapping[str, str],
    now: Mapping[str, str],
) -> None:
    """Raise ConfigError for an adapter of another model than the model of the hub.

    about: content of `changed_model.json`; then: versions of the weights at `commit`, {} if unknown; now: at `model`.
    """
    repo, _, revision = model.partition("@")
    check_names(found, commit, "--model", repo, "")
    if then and then != now:
        raise ConfigError(
            f"the adapter was trained on commit {commit[:12]} of {repo.removeprefix(HUB)}, and the weights of {model} "
            f"differ. Use --model {repo}@{commit}"
        )
    if not then:
        check_names(found, commit, "--model", repo, revision if len(revision) == COMMIT_LENGTH else "")
    if about.get("altered"):
        name, origin = printable_line(about.get("name")), repo.removeprefix(HUB)
        raise ConfigError(
            f"the adapter changes {name}, an import of {origin} with other weights "
            f"({printable_line(about['altered'])}); serve the artifact of the import"
        )


def weights_at(source: str, commit: str) -> dict[str, str]:
    """Return the version of each weight file of a model of the hub; {} without access to the commit. StoreError."""
    try:
        there = open_place(source)
        return weight_versions(there, there.listing(at=commit), commit)
    except NoStore:
        return {}


def weight_versions(place: Backend, listed: Mapping[str, ListedFile], at: str) -> dict[str, str]:
    """Return the version of each weight file that an engine loads; {} for a commit that the hub lacks."""
    if model_files.INDEX in listed:
        names = weight_digests.indexed(place, "", at)
    else:
        names = {name for name in listed if name.endswith(models.WEIGHTS) and "/" not in name}
    return {name: one.version for name, one in listed.items() if name in names}


def changed_by(place: str) -> Mapping[str, Any]:
    """Return the content of `changed_model.json` of an adapter; {} without the file. UnusableDocument, StoreError."""
    if "://" not in place:
        return model_files.load(Path(place), CHANGED) if (Path(place) / CHANGED).is_file() else {}
    there = open_place(place)
    at = there.current_revision()
    listed = there.listing(at=at)
    name = f"{inner_folder(listed)}{CHANGED}"
    return untrusted_input.mapping(there.read_small(name, at), model_files.CONFIG_BYTES) if name in listed else {}


def change(
    name: str, named: variants.Named, gone: Iterable[str], settings: Settings, journal: Journal, tell: Say
) -> tuple[WantedService, ServiceRecord]:
    """Load and unload adapters of a running service without a restart; return both states. Raises UsageError.

    A rank above the reserved rank needs new engines.
    """
    row = service_rows.find(journal, name)
    if row is None:
        raise UsageError(f"no service is called {name}; see: inv serve.status")
    wanted = service_state.parse_desired(row.wanted)
    if missing := [one for one in gone if one not in wanted.variants]:
        known = ", ".join(wanted.variants) or "none"
        raise UsageError(f"{name} has no adapter {missing[0]}; loaded: {known}")
    version = wanted.newest
    found = variants.resolve(name, version, named, settings) if named else {}
    tuning = version.service.slipway.engine
    if found and version.engine.startswith("vllm"):
        highest = max(one.rank for one in found.values())
        if not tuning.variants or highest > vllm_rank(tuning.variant_rank):
            room = f"adapters up to rank {tuning.variant_rank}" if tuning.variants else "no adapters"
            again = " ".join(f"--adapter {one}={source}" for one, (_, source) in named.items())
            raise UsageError(
                f"the engines of {name} have room for {room}, and rank {highest} is needed. To replace the engines one "
                f"by one: inv serve.up --name {name} {again}"
            )
    kept = {one: variant for one, variant in wanted.variants.items() if one not in {*gone}}
    new = dataclasses.replace(wanted, variants={**kept, **found})
    if new != wanted:
        service_rows.write_desired_state(journal, name, service_state.write(new), row)
    return new, controller_client.ensure(name, settings, journal, tell)


def _sha256(file: Path) -> str:
    found = hashlib.sha256()
    with untrusted_input.opened(file) as opened:
        while block := opened.read(1 << 20):
            found.update(block)
    return found.hexdigest()
