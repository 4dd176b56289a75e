"""The checklist of `inv doctor --for serve`: requirements to check before a service starts.

The input is a service file and settings; the output is a DoctorLine per requirement. The check queries accounts,
machines and stores, and changes none of them. State "off" means not needed.
"""

from pathlib import Path

from flows.installation import doctor
from flows.installation.doctor import DoctorLine
from flows.services.serve import folder_of
from infra.errors import SlipwayError
from infra.settings import VENDORS, Settings
from scripts.cli import render
from serve import own_run, revision
from serve import service as service_file
from serve.engine import models
from serve.processes.controller_process import ServicePaths
from serve.replicas import placement
from serve.service import Service
from store.manifest import StoreError


def serving(config: str, settings: Settings) -> list[DoctorLine]:
    """Return a line per requirement of a service. Raises UsageError for an invalid service file."""
    service = service_file.load(revision.path_of(config))
    shipped = service_file.load(revision.CONFIG)
    name = service.file.name or "slipway"
    nodes = _nodes(settings)
    own = sum(one.state == "ok" for one in nodes)
    is_own = own_run.is_wanted(service, "", "", service_file.model_of(service))
    ignored = placement.ignored_settings(service, is_own)
    unread = [DoctorLine(key, "off", f"has no effect: {instead}") for key, instead in ignored]
    return [
        *nodes,
        *_clouds(settings),
        _model(service, config, name, settings),
        *unread,
        _replicas(service, own),
        _load(service, shipped, name),
        _alerts(settings),
        _door(name, settings),
    ]


def _nodes(settings: Settings) -> list[DoctorLine]:
    if not settings.pools.exists():
        return [
            DoctorLine("own machines", "off", f"no inventory {settings.pools}. Create the file, then run: inv pool.up")
        ]
    try:
        return doctor.nodes(settings)
    except SlipwayError as error:
        return [DoctorLine("own machines", "bad", str(error))]


def _clouds(settings: Settings) -> list[DoctorLine]:
    """Return a line per cloud with the state of the account, because a configured key may be invalid."""
    found = []
    for vendor, key in VENDORS.items():
        if not getattr(settings, key):
            found.append(DoctorLine(vendor, "off", f"no API key; set {key.upper()} to rent on this vendor"))
            continue
        said = [one for one in doctor.account(vendor, settings) if one.name == "account"]
        found += [DoctorLine(vendor, one.state, one.detail) for one in said]
    return found


def _model(service: Service, config: str, name: str, settings: Settings) -> DoctorLine:
    """Return the line about the model for serve.up."""
    try:
        said = revision.requested_model(service, config, "", "", None)
        source = folder_of(said, "", settings, name, render.tell)
        if "://" in source:
            where, size = "every machine can download the model", models.size_there(source)
        else:
            where = (
                "this machine and own machines can read the folder; rented machines need a model at hf://, "
                "s3:// or gs://: inv ckpt.push"
            )
            size = sum(path.stat().st_size for path in Path(source).iterdir() if path.is_file())
        return DoctorLine("model", "ok", f"{source}, {size / 1e9:.2f} GB: {where}")
    except (SlipwayError, StoreError, OSError) as error:
        return DoctorLine("model", "bad", " ".join(str(error).split()))


def _replicas(service: Service, own: int) -> DoctorLine:
    least = service.policy.min_replicas
    if least == own or not own:
        return DoctorLine("min_replicas", "ok", f"{least}, {f'one on each of {own}' if own else 'and no'} own machines")
    how = f"{least - own} rented permanently" if least > own else f"{own - least} own machines remain for bursts"
    return DoctorLine("min_replicas", "off", f"{least} for {own} own machines: {how}")


def _load(service: Service, shipped: Service, name: str) -> DoctorLine:
    """Return the line about the target load: the right value depends on the model, so the default is marked "off"."""
    target = service.policy.target_qps_per_replica
    ask = f"measure the right value: inv serve.bench {name} --target-ttft 1"
    if target is None:
        return DoctorLine("target_qps_per_replica", "off", f"not set: the number of replicas is fixed; {ask}")
    if target == shipped.policy.target_qps_per_replica:
        return DoctorLine("target_qps_per_replica", "off", f"{target}, the default of the shipped file; {ask}")
    return DoctorLine("target_qps_per_replica", "ok", f"{target}")


def _alerts(settings: Settings) -> DoctorLine:
    where = "metrics: /metrics at the service address (Prometheus), inv serve.status --metrics"
    if settings.notify:
        return DoctorLine("monitoring", "ok", f"{where}; notices of ended runs go to {settings.notify}")
    return DoctorLine("monitoring", "off", f"{where}; SLIPWAY_NOTIFY is not set, so no notices are sent")


def _door(name: str, settings: Settings) -> DoctorLine:
    """Return the line about access: API keys are checked here; HTTPS is the task of a proxy before the gateway."""
    proxy = "for public access, put an HTTPS proxy before the service, such as a Cloudflare tunnel or nginx"
    if ServicePaths.for_service(settings, name).keys.exists():
        return DoctorLine("access", "ok", f"clients need an API key; {proxy}")
    return DoctorLine(
        "access",
        "off",
        f"no API key, so the service listens on 127.0.0.1 only. Create a key: inv serve.key {name} --for WHO; {proxy}",
    )
