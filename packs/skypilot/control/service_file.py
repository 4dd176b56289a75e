"""The file of a SkyServe service: read for a plan, checked by SkyPilot, and handed over as the file is."""

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from flows.services.engine_services import EngineService
from infra import job_environment, strict_yaml
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.op import Op
from infra.runs.engine import RunEngine
from infra.settings import Settings, is_secret, read_dotenv
from infra.units import count
from packs.skypilot.control import served
from packs.skypilot.control.managed_jobs import ManagedJobs


class SkyServeFiles:
    """Services of SkyServe; implements `flows.services.engine_services.EngineServices`."""

    unproven = served.UNPROVEN

    def __init__(self, engine: RunEngine) -> None:
        self.engine = cast(ManagedJobs, engine)

    def read(self, path: Path, settings: Settings) -> EngineService:
        """Return the service of a file, with the price of a replica now. Raises UsageError, NoOffer."""
        try:
            documents = strict_yaml.documents(path)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        said = documents[0].value if len(documents) == 1 else None
        if not isinstance(said, dict) or not isinstance(said.get("service"), dict):
            raise UsageError(f"{path}: the file of a service is one document with the section `service:`")
        if "slipway" in said:
            raise UsageError(f"{path}: line {documents[0].line('slipway')}: slipway: SkyServe has no such section")
        document = with_full_paths(with_values(said, path, settings))
        self.engine.client.ask("check_service", task=document)
        keys = {"resources": document.get("resources") or {}}
        nodes = int(document.get("num_nodes") or 1)
        choice = self.engine.price_offers(keys, nodes)
        if has_fallback(document["service"]):  # On-demand replicas may run in place of spot replicas.
            plain = self.engine.price_offers({"resources": on_demand(keys["resources"])}, nodes)
            choice = replace(choice, alternatives=(*choice.alternatives, plain.chosen, *plain.alternatives))
        least, most = numbers(document["service"])
        notes = [
            *filter(None, [choice.note]),
            f"SkyServe gets {path} as it is, and starts, replaces and ends {count(most, 'replica')} at most",
            "no guard of Slipway runs on these machines: the supervisor on this machine counts the price of "
            f"{count(max(1, most), 'replica')} and ends the service at the limit; with this machine off, no limit "
            "holds",
            served.UNPROVEN,
        ]
        if most > least:
            notes.append(f"SkyServe changes the number of replicas between {least} and {most} by load")
        offer = choice.for_limits
        offer = replace(offer, micro_usd_per_hour=offer.micro_usd_per_hour * nodes)
        return EngineService(document=document, offer=offer, least=least, most=most, notes=tuple(notes))

    def renting(self, document: Mapping[str, Any]) -> RunEngine:
        return cast(RunEngine, replace(self.engine, submission=lambda token, limits: document, is_service=True))

    def view(self, op: Op) -> Mapping[str, Any]:
        record, _ = self.engine.served.look(op.remote_id or served.Services.id_of(op.token), since=time.time())
        return record

    def log(self, op: Op, replica: int | None, tail: int | None) -> str:
        return str(self.engine.client.ask("service_log", name=op.token, replica_id=replica, tail=tail))


def numbers(section: Mapping[str, Any]) -> tuple[int, int]:
    """Return the least and the most replicas of a section `service`."""
    policy = section.get("replica_policy") or {}
    least = int(policy.get("min_replicas", section.get("replicas", 1)) or 0)
    most = max(least, int(policy.get("max_replicas") or 0)) + int(policy.get("num_overprovision") or 0)
    # SkyServe starts an on-demand replica beside each spot replica that is not ready.
    return least, most * 2 if policy.get("dynamic_ondemand_fallback") else most


def has_fallback(section: Mapping[str, Any]) -> bool:
    """Return whether a section `service` lets SkyServe start on-demand replicas in place of spot replicas."""
    policy = section.get("replica_policy") or {}
    return bool(policy.get("base_ondemand_fallback_replicas") or policy.get("dynamic_ondemand_fallback"))


def on_demand(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the resources of the on-demand replicas of a service with spot replicas."""
    several = {
        key: [{**one, "use_spot": False} for one in resources[key]]
        for key in ("any_of", "ordered")
        if resources.get(key)
    }
    return {**resources, **several, "use_spot": False}


def with_values(said: Mapping[str, Any], path: Path, settings: Settings) -> dict[str, Any]:
    """Return the document with the values of variables: of the command line, of .env and of the shell.

    Each value is a text, as SkyPilot reads the value. Raises UsageError with all variables without a value.
    """
    given, written, missing = job_environment.of_own_job(settings), read_dotenv(ROOT / ".env"), []
    found: dict[str, Any] = {**strict_yaml.without_dates(said), "envs": {}, "secrets": {}}
    for section in ("envs", "secrets"):
        names = said.get(section) or {}
        for name, value in (dict.fromkeys(names) if isinstance(names, list) else names).items():
            own = given.get(str(name))
            if own is None:
                own = _value(str(name), written, settings) if value is None else str(value)
            found[section][str(name)] = own
            missing += [str(name)] if own is None else []
    for name, value in given.items():
        if name not in (*found["envs"], *found["secrets"]):
            found["secrets" if is_secret(name) else "envs"][name] = value
    found = {key: value for key, value in found.items() if value != {} or key not in ("envs", "secrets")}
    if missing:
        raise UsageError(
            f"{path}: {', '.join(missing)} without a value; set the variable in .env, or -e {missing[0]}=VALUE"
        )
    return found


def _value(name: str, written: Mapping[str, str], settings: Settings) -> str | None:
    return str(getattr(settings, name.lower(), "") or written.get(name) or os.environ.get(name) or "") or None


def with_full_paths(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with absolute paths of this machine, because the API server has a different folder."""
    found, mounts = dict(said), said.get("file_mounts")
    if isinstance(said.get("workdir"), str):
        found["workdir"] = _full(said["workdir"])
    if isinstance(mounts, dict):
        found["file_mounts"] = {path: _full(one) for path, one in mounts.items()}
    return found


def _full(said: Any) -> Any:
    if isinstance(said, list):
        return [_full(one) for one in said]
    if isinstance(said, dict):
        return {**said, "source": _full(said["source"])} if said.get("source") else said
    return said if not isinstance(said, str) or "://" in said else str(Path(said).expanduser().absolute())
