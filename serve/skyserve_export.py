"""Export of a service file for `sky serve up` of SkyPilot, without the section `slipway`."""

import dataclasses
import re
from typing import Any

from infra.errors import UsageError
from serve.service import MODEL_MOUNT, Service

EVERYWHERE = "0.0.0.0"
ORDER = (
    *("name", "workdir", "num_nodes", "service", "resources", "envs", "secrets", "file_mounts", "setup", "run"),
    *("config", "inputs", "outputs", "event_callback"),
)
LISTENS_HERE = re.compile(r"(--(?:host|bind)[= ]\s*)['\"]?(?:127\.0\.0\.1|localhost)\b['\"]?")


def to_skyserve(service: Service, model: str = "") -> dict[str, Any]:
    """Return the document for `sky serve up`. `model`: location of the weights, "" = as in the file.

    SkyServe's load balancer runs on a different machine than the replicas, so the exported engine listens on every
    address. Raises UsageError for features missing in SkyServe.
    """
    policy, ours = service.policy, service.slipway
    if policy.most != policy.min_replicas and policy.target_qps_per_replica is None:
        raise UsageError("SkyServe scales by requests only; set target_qps_per_replica")
    document = _plain(service.file)
    document.pop("slipway", None)
    envs = dict(service.envs)
    mounts = dict(document.get("file_mounts", {}))
    model = model or ours.model
    if model:
        envs["MODEL"], more = _mounted(model)
        mounts |= more
    if ours.served_name or service.file.name:
        envs.setdefault("SERVED_NAME", ours.served_name or str(service.file.name))
    if "HOST" in envs:
        envs["HOST"] = EVERYWHERE
    document["run"] = LISTENS_HERE.sub(rf"\g<1>{EVERYWHERE}", service.file.run)
    resources = dict(document.get("resources", {}))
    resources.setdefault("ports", service.port)
    document |= {"resources": resources, "envs": envs, "file_mounts": mounts}
    return {name: document[name] for name in ORDER if document.get(name) not in (None, {}, "")}


def _mounted(model: str) -> tuple[str, dict[str, str]]:
    """Return the value of $MODEL on a replica, and the required mounts. Raises UsageError for an unreachable model."""
    if model.startswith("hf://"):
        return model.removeprefix("hf://"), {}
    if re.match(r"(s3|gs|r2|cos|oci|nebius)://", model) or model.startswith(("/", "./", "../", "~")):
        return MODEL_MOUNT, {MODEL_MOUNT: model}
    raise UsageError(
        f"SkyServe cannot reach {model}; give hf://org/name, s3:// or gs://bucket/path or a folder (./{model})"
    )


def _plain(record: Any) -> Any:
    """Return a record as plain data for YAML, without fields at the default value."""
    if dataclasses.is_dataclass(record):
        said = {}
        for one in dataclasses.fields(record):
            value = getattr(record, one.name)
            default = one.default_factory() if callable(one.default_factory) else one.default
            if value != default:
                said[one.name] = _plain(value)
        return said
    if isinstance(record, dict):
        return {key: _plain(one) for key, one in record.items()}
    return [_plain(one) for one in record] if isinstance(record, list) else record
