"""Use cases of a service: plan the next version, and record the desired state for the controller."""

import contextlib
import dataclasses
import heapq
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.models.find_model import gguf_problem, model_folder, shape_of
from flows.services import variants
from flows.specs.service import ServeSpec
from flows.supervisor import supervisor_client
from infra import job_environment
from infra.agent import host
from infra.errors import NoOffer, UsageError
from infra.flags import command_words
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.service_rows import ServiceRow
from infra.names import check_name
from infra.records import Offer, PlannedMount
from infra.runs.timing import Say
from infra.selection import choose, missing_programs, preflight, registry
from infra.settings import Settings, is_secret
from infra.units import count, duration
from serve import file_checks, own_image, own_run, revision, service_document
from serve import service as service_file
from serve.engine import memory_fit, models
from serve.engine.memory_fit import VLLM_CPU
from serve.engines import GGUF, LLAMA, OWN_RUN
from serve.policy import service_state
from serve.policy.service_state import ServiceRecord, Version, WantedService
from serve.processes import controller_client, controller_process
from serve.replicas import placement
from serve.replicas.replica_pod import free_port
from serve.variants import Variant
from store.artifacts import model_files
from store.backends.backend import open_place
from trainer.config import phases_for
from trainer.records.phase_registry import PHASES, phase_names


@dataclass(frozen=True)
class Revision:
    """The next version of a service, and the present service; None for a new service."""

    name: str
    version: Version
    row: ServiceRow | None
    old: WantedService | None
    variants: dict[str, Variant]

    @property
    def mounts(self) -> tuple[PlannedMount, ...]:
        """Return the files and folders that every replica gets. Raises UsageError."""
        return own_run.planned(self.version.service) if self.version.engine == OWN_RUN else ()


def plan(spec: ServeSpec, journal: Journal, settings: Settings, tell: Say) -> Revision:
    """Return the requested version without changing any state. Raises UsageError for an impossible request."""
    given = job_environment.plain(settings)
    name = spec.name or revision.service_name(spec.config, given)
    row = service_rows.find(journal, name)
    old = service_state.parse_desired(row.wanted) if row else None
    where = spec.provider or (old.newest.provider if old else revision.usual_provider(settings))
    provider = "" if where == revision.ANY else where
    if spec.config:
        path, typed = revision.path_of(spec.config), revision.with_machine({}, spec.machine).get("resources", ())
        candidates = placement.candidates(provider, settings)
        file_checks.check(path, given, spec.engine, spec.model or spec.tag, typed, candidates)
    check_name(name)
    if old and old.is_ending:
        raise UsageError(f"{name} is being ended; after the end (inv serve.status), run the same command again")
    if not (spec.provider or old) and len(usual := placement.candidates(provider, settings)) == 1:
        provider = usual[0]  # an update stays there, also after a key or an inventory is added
    document = revision.document_of(spec.config, old, name, spec.replicas, spec.spend_limit, given)
    document = revision.with_machine(document, spec.machine)
    if not (old or spec.config) and placement.candidates(provider, settings) == ("local",):
        num_gpus = len(host.nvidia()[0])
        document = revision.for_this_machine(document, num_gpus, spec.replicas)
        if not spec.replicas:
            of_what = (
                f"a replica for each of the {count(num_gpus, 'GPU')} of this machine"
                if num_gpus
                else "no GPU on this machine, so one replica"
            )
            tell(
                f"{of_what}; more replicas would share the same {'GPUs' if num_gpus else 'CPUs'}; to change the "
                "number: --replicas N"
            )
    document = with_environment(document, settings)
    before = old.newest if old else None
    service = service_file.parse(f"service {name}", document)
    draft = Draft(name=name, service=service, document=document, provider=provider, before=before)
    is_own = own_run.is_wanted(service, spec.engine, spec.model or spec.tag, own_model(service, spec, before))
    version = (version_of_run if is_own else version_of_model)(draft, spec, settings, tell)
    version, found = variants.with_variants(name, version, variants.named_by(spec.added), old, settings)
    paid: dict[str, str | bool] = {
        "spend-limit": spec.spend_limit,
        "use-spot": spec.use_spot,
        "max-price": spec.max_price,
    }
    if not revision.may_rent(version, settings):
        but = ("spend_limit", "use_spot", "max_price", "yes", "json", "dry_run", "detach")
        practice = shlex.join(["inv", "serve.up", "--rehearse", *command_words(spec, but)])
        preflight.refuse_money_flags(settings, paid, practice=practice)
        refuse_missing_gpus(version, practice, settings)
    version = revision.with_limit(version, settings, tell)
    return Revision(name, revision.with_memory_need(version, settings, tell), row, old, found)


def refuse_missing_gpus(version: Version, practice: str, settings: Settings) -> None:
    """Raise NoOffer if this machine is the only place for the replicas and lacks their GPUs.

    practice: the command that rehearses the service.
    """
    request = placement.request_of(version.service, "")
    is_here = placement.candidates(version.provider, settings) == ("local",)
    if not (is_here and (request.gpu or request.num_gpus)) or registry.provider(settings, "local").offers(request):
        return
    wanted = f"{request.num_gpus or ''} {request.gpu or 'GPU'}".strip()
    raise NoOffer(
        f"this machine does not have the GPUs of a replica ({wanted}). {choose.how_to_rent({}, practice)}; to list the "
        "GPUs of this machine: inv doctor"
    )


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The service file of the next version, with the flags of the command."""

    name: str
    service: service_file.Service
    document: dict[str, Any]
    provider: str
    before: Version | None


def version_of_run(draft: Draft, spec: ServeSpec, settings: Settings, tell: Say) -> Version:
    """Return the version of a service whose engine is the `run` of the file. Raises UsageError."""
    document = own_run.with_full_paths(draft.document) if spec.config else draft.document
    revision.check_file(draft.service, tell, is_own_run=True)
    for note in own_run.without_effect(draft.service):
        tell(note)
    asked, is_rehearsed = placement.candidates(draft.provider, settings), bool(settings.rehearsal)
    candidates, has_image = own_image.able(draft.service, asked, is_rehearsed), bool(own_image.image_of(draft.service))
    for note in own_image.notes(draft.service, asked, is_rehearsed):
        tell(note)
    is_here = own_run.is_one_machine(candidates, settings)
    if is_here and spec.replicas is None:
        document = own_run.with_one_replica(document, draft.service, tell)
    scripts = {"setup": draft.service.file.setup, "run": draft.service.file.run}
    for one in missing_programs.find(scripts, candidates, has_image=has_image):
        tell(f"{one.section}: {one.text}")
    version = revision.own_version(document, draft.provider, settings.store, draft.name)
    if is_here and draft.before and draft.before.engine == OWN_RUN:
        tell(f"an update ends the old replica first, because both would listen on port {draft.service.port}")
    is_own_machine = not all(registry.provider(settings, one).is_rented for one in candidates)
    own_run.check(version.service, is_here, settings, is_own_machine, has_image)
    return dataclasses.replace(version, weights=own_run.release_of(version.service))


def version_of_model(draft: Draft, spec: ServeSpec, settings: Settings, tell: Say) -> Version:
    """Return the version of a service that serves a model. Raises UsageError."""
    name, before = draft.name, draft.before
    revision.check_file(draft.service, tell)
    if taken := [one for one in draft.service.secrets if one in service_state.NOT_THEIRS]:
        raise UsageError(
            f"envs: {taken[0]}: Slipway sets the variable for the engine of a model; remove the variable, also from "
            "the readiness_probe. Keys of clients: inv serve.key"
        )
    own_run.secrets(draft.service, settings)  # Raises before any machine is rented.
    document = revision.with_probed_name(draft.document, draft.service, name, tell)
    service = service_file.parse(f"service {name}", document)
    said = revision.requested_model(service, spec.config, spec.model, spec.tag, before)
    source = folder_of(said, spec.tag, settings, name, tell, phases_for(LLAMA) if spec.engine == LLAMA else ())
    version = revision.first_version(document, source, draft.provider, spec.engine, settings.store, before, name)
    return with_capable_engine(version, bool(spec.engine), tell)


def own_model(service: service_file.Service, spec: ServeSpec, before: Version | None) -> str:
    """Return a model for an engine of ours; "" if the file names none and the service runs its own `run`."""
    if before and not spec.config:
        return "" if before.engine == OWN_RUN else before.model
    return service_file.model_of(service) if spec.config else "newest"


def with_capable_engine(version: Version, is_asked: bool, tell: Say) -> Version:
    """Return the version with an engine able to run the model; our engine replaces others unless requested by name.

    Raises UsageError if llama.cpp was requested but cannot run the model, before any machine is rented.
    `revision.check_reach` refuses a model that vLLM cannot run on a CPU.
    """
    if "://" in version.model:
        return version
    if version.engine == VLLM_CPU and not is_asked:
        with contextlib.suppress(OSError, ValueError):  # unreadable, or not supported by our engine either
            shape_of(Path(version.model))
            if problem := memory_fit.cpu_problem(model_files.load(Path(version.model))):
                tell(f"{version.model}: {problem}; using Slipway's own engine")
                return dataclasses.replace(version, engine="torch")
    if version.engine != LLAMA:
        return version
    try:
        config = shape_of(Path(version.model))
        problem = gguf_problem(Path(version.model), config, GGUF.get(version.service.slipway.engine.dtype, ""))
    except (OSError, ValueError) as error:
        raise UsageError(f"{version.model}: {error}") from None
    if not problem:
        return version
    if not is_asked:
        tell(f"{version.model}: {LLAMA} does not support the model ({problem}); using Slipway's own engine")
        return dataclasses.replace(version, engine="torch")
    other = "torch" if config.features else "vllm"
    raise UsageError(f"--engine {LLAMA}: {LLAMA} does not support {version.model}: {problem}; --engine {other}")


def with_environment(document: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return a service document with the variables of `--env` for the replicas. Raises UsageError for a secret."""
    given = job_environment.of_job(settings)
    if hidden := [name for name in given if is_secret(name)]:
        raise UsageError(
            f"--env {hidden[0]}: the journal stores the variables of a service, and must not hold a secret. If the "
            "variable is a setting (inv config), put the variable into .env"
        )
    return dict(service_document.with_variables(document, given)) if given else document


def folder_of(said: str, tag: str, settings: Settings, name: str, tell: Say, first: Sequence[str] = ()) -> str:
    """Return the location of the weights: a local folder or an address. Raises UsageError."""
    if not said or said in PHASES:
        return str(models.model_folder(model_folder(settings, said, tag, tell, first)))
    if tag:
        raise UsageError(f"--tag {tag} applies to checkpoints of {phase_names()}; --model {said} is not a phase")
    if not ("/" in said or Path(said).expanduser().is_dir() or models.find_artifact(said, settings.store)):
        return str(models.model_folder(model_folder(settings, said, "", tell, first)))  # a tag, or an unknown name
    if "://" in said and not said.startswith("file://"):
        if not said.startswith(("hf://", "s3://", "gs://")):
            raise UsageError(
                f"--model {said}: expected hf://user/repo, s3://bucket/folder, gs://bucket/folder, a folder, an "
                "artifact"
            )
        open_place(said)  # Raises UsageError for an invalid address.
        return said
    found = models.resolve(said, name, store=settings.store, cache=models.default_cache(), say=tell)
    return str(found.folder)


def replica_offers(found: Revision, settings: Settings, tell: Say) -> list[Offer]:
    """Return the offers of machines for the replicas, in the order to try. Raises NoOffer, OutOfMoney."""
    service, wants_spot = found.version.service, bool(found.version.service.file.resources.use_spot)
    ways = placement.ways_of(found.version, settings)
    request = placement.request_of(service, f"{found.name}-0", found.version.gpu_bytes)
    ready = placement.find_in_ways(ways, request, wants_spot, settings, tell)
    return list(heapq.merge(*(offers for _, offers in ready), key=placement.rank))


def desired_state(found: Revision, spec: ServeSpec, journal: Journal, settings: Settings, tell: Say) -> WantedService:
    """Return the new desired state of the service. Raises UsageError for a change impossible during operation."""
    version, name, port = found.version, found.name, spec.port
    revision.check_reach(version, settings)
    revision.check_scheme(name, found.old, version.service)
    is_kept = controller_process.is_kept(name, journal)
    if found.old and port == 0 and not is_kept:
        port = free_port(())  # The old port may be in use by now.
    new = revision.next_desired_state(found.old, version, spec.mode, spec.host, port, name, found.row, is_kept)
    return dataclasses.replace(new, variants=found.variants)


def set_desired_state(
    found: Revision, wanted: WantedService, journal: Journal, settings: Settings, tell: Say
) -> ServiceRecord:
    """Record the desired state, ensure a live controller, and return the controller's record.

    Remove a new service if no controller could start.
    """
    if wanted != found.old:
        service_rows.write_desired_state(journal, found.name, service_state.write(wanted), found.row)
    try:
        seen = controller_client.ensure(found.name, settings, journal, tell)
        supervisor_client.ensure(settings)
        return seen
    except BaseException:
        if found.old is None:  # No replica was started yet.
            controller_client.undo_start(found.name, settings, journal)
        raise


def plan_scale(
    name: str, least: int | None, most: int | None, journal: Journal, settings: Settings, tell: Say
) -> tuple[Revision, WantedService]:
    """Return the service with the requested number of replicas, and the desired state, without changing any state.

    Raises UsageError for a range of replicas without a scaling target.
    """
    row = service_rows.find(journal, name)
    assert row is not None
    old = service_state.parse_desired(row.wanted)
    if old.is_ending:
        raise UsageError(f"{name} is being ended")
    policy = old.newest.service.policy
    lower = policy.min_replicas if least is None else least
    if most is not None and most != lower and not revision.has_signal(old.newest.document):
        raise UsageError(
            f"{name} cannot autoscale from {lower} to {most} replicas: no scaling target is set. Set "
            f"target_qps_per_replica in a service file: inv serve.up {name} --config FILE"
        )
    upper = max(policy.most, lower) if most is None else most
    if lower == policy.min_replicas and upper == policy.most:
        return Revision(name, old.newest, row, old, dict(old.variants)), old
    is_own, candidates = old.newest.engine == OWN_RUN, placement.candidates(old.newest.provider, settings)
    if is_own and own_run.is_one_machine(candidates, settings) and upper > 1:
        raise UsageError(
            f"{name}: on this machine one replica runs, because all replicas would listen on port "
            f"{old.newest.service.port}"
        )
    document: dict[str, Any] = revision.scaled(old.newest.document, lower, upper)
    service_file.parse(f"service {name}", document)
    newest = revision.with_limit(dataclasses.replace(old.newest, document=document), settings, tell)
    wanted = dataclasses.replace(old, versions=(*old.versions[:-1], newest))
    return Revision(name, newest, row, old, dict(old.variants)), wanted


def rents_more(found: Revision, settings: Settings) -> bool:
    """Return whether a change of the number of replicas may rent machines."""
    assert found.old is not None
    before, after = found.old.newest.service.policy, found.version.service.policy
    is_more = after.min_replicas > before.min_replicas or after.most > before.most
    return is_more and revision.may_rent(found.version, settings)


def hourly_cost(offers: Sequence[Offer], replicas: int) -> tuple[int, int]:
    """Return the price of the replicas in micro-USD per hour, and the number of replicas without a machine."""
    total, left = 0, replicas
    for one in offers:  # an own machine holds a single replica; a vendor offers many machines of a kind
        taken = min(left, 1 if one.place else left)
        total, left = total + taken * one.micro_usd_per_hour, left - taken
    return total, left


def scale_forecast(name: str, wanted: WantedService, live: int) -> str:
    """Return what the controller will do after a change of the number of replicas, and when. `live`: replicas now."""
    policy, document = wanted.newest.service.policy, wanted.newest.document
    least, most = policy.min_replicas, policy.most
    now = f"the controller starts {least - live} now" if live < least else ""
    if live > most:
        now = f"the controller ends {live - most} now, after the open requests"
    if not revision.has_signal(document) or least == most:
        return f"{name}: {count(most, 'replica')} wanted, {live} live; {now or 'no replica starts or ends'}"
    more, less = duration(policy.upscale_delay_seconds), duration(policy.downscale_delay_seconds)
    return (
        f"{name}: {least} to {most} replicas by load, {live} live; "
        f"{now or 'the controller fits the number to the load of the last minute now'}. Later, replicas start after "
        f"{more} of more load, and end after {less} of less load and after the open requests"
    )
