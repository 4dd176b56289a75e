"""SkyPilot's SDK behind a pipe: run by the interpreter of the `skypilot` environment, which alone holds it.

In: lines of JSON, {"what": ..., "given": {...}}. Out: lines of JSON, {"answer": ...} or {"kind": ..., "error": ...}.
Importing SkyPilot takes some seconds, so one process answers one question after the other. It imports nothing of
ours, and what SkyPilot prints goes to stderr.
"""

import io
import json
import os
import sys
from typing import Any

KINDS = {  # what SkyPilot raises, and what that means to whoever asks
    "ApiServerConnectionError": "unreachable",
    "APIVersionMismatchError": "skew",
    "APINotSupportedError": "skew",
    "ApiServerAuthenticationError": "auth",
    "PermissionDeniedError": "auth",
    "NoCloudAccessError": "none",
    "ResourcesUnavailableError": "none",
    "ResourcesMismatchError": "usage",
    "InvalidSkyPilotConfigError": "usage",
    "NotSupportedError": "usage",
    "StorageSpecError": "usage",
    "StorageModeError": "usage",
    "StorageNameError": "usage",
    "StorageSourceError": "usage",
    "ValueError": "usage",
    "ConnectionError": "unreachable",
}
FIELDS = ["job_id", "job_name", "status", "submitted_at", "start_at", "end_at", "recovery_count", "failure_reason",
          "cloud", "region", "cluster_resources", "user_name"]  # fmt: skip


def server() -> dict:
    """Return which API server answers, and its version; raises when none does. None is ever started."""
    from sky.server import common

    url = common.get_server_url()
    common.get_api_server_status_response.cache_clear()
    status, info = common.check_server_healthy(url)
    if status.value == "needs_auth":
        raise PermissionError(f"{common.redact_url_password(url)} wants you to log in")
    import sky

    return {"url": common.redact_url_password(url), "version": info.version, "client": sky.__version__,
            "user": (info.user or {}).get("name", "")}  # fmt: skip


def validate(task: dict) -> dict:
    """Return the task as SkyPilot understands it; nobody is asked."""
    import sky

    return sky.Task.from_yaml_config(task).to_yaml_config()


def limits() -> dict:
    """Return by cloud which features it never has, in SkyPilot's words."""
    from sky.utils.registry import CLOUD_REGISTRY

    found = {}
    for name, cloud in CLOUD_REGISTRY.items():
        table = getattr(cloud, "_CLOUD_UNSUPPORTED_FEATURES", {})
        found[name] = sorted(one.value for one in table)
    return found


def price(task: dict) -> str:
    """Return the table of what SkyPilot's optimizer would take for the task now, as the server prints it."""
    import sky

    server()
    made = sky.Task.from_yaml_config(task)
    with sky.Dag() as dag:
        dag.add(made)
    said = io.StringIO()
    sky.stream_and_get(sky.optimize(dag), output_stream=said)
    return said.getvalue()


def launch(task: dict) -> dict:
    """Submit a managed job; return its number."""
    import sky

    server()
    name = task["name"]  # what is read is taken out of it
    ids, _ = sky.get(sky.jobs.launch(sky.Task.from_yaml_config(task), name=name))
    return {"job_id": ids[0]}


def queue(job_ids: Any = None, name: Any = None) -> list:
    """Return the managed jobs of this user that are known, with their states."""
    import sky

    server()
    more = {"job_ids": job_ids} if job_ids else {"name_match": name} if name else {}
    records = sky.get(sky.jobs.queue_v2(refresh=False, fields=FIELDS, **more))[0]
    found = []
    for one in records:
        said = one.model_dump() if hasattr(one, "model_dump") else dict(one)
        status = said.get("status")
        row = {key: said.get(key) for key in FIELDS}
        found.append({**row, "status": getattr(status, "value", status)})
    return found


def cancel(job_id: int) -> None:
    import sky

    server()
    sky.get(sky.jobs.cancel(job_ids=[job_id]))


def log(job_id: int, tail: Any = None, controller: bool = False) -> str:
    """Return what a job has printed, all of it or its last lines."""
    import sky

    server()
    said = io.StringIO()
    sky.jobs.tail_logs(job_id=job_id, follow=False, controller=controller, tail=tail, output_stream=said)
    return said.getvalue()


def serve_up(task: dict, name: str) -> dict:
    """Hand a service to SkyServe; return where it answers."""
    import sky

    server()
    made, endpoint = sky.get(sky.serve.up(sky.Task.from_yaml_config(task), name))
    return {"name": made, "endpoint": endpoint}


def serve_status(name: str) -> list:
    import sky

    server()
    return [{"name": one["name"], "status": one["status"].value, "endpoint": one.get("endpoint") or ""}
            for one in sky.get(sky.serve.status([name] if name else None))]  # fmt: skip


def serve_down(name: str) -> None:
    import sky

    server()
    sky.get(sky.serve.down([name]))


def kind_of(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return "missing"
    if isinstance(error, PermissionError):
        return "auth"
    return next((KINDS[one.__name__] for one in type(error).__mro__ if one.__name__ in KINDS), "other")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = {"answer": globals()[asked["what"]](**asked["given"])}
        except (Exception, SystemExit) as error:  # whatever SkyPilot raises is an answer
            name = "" if kind_of(error) != "other" else f"{type(error).__name__}: "
            said = {"kind": kind_of(error), "error": f"{name}{error}"}
        answers.write(json.dumps(said, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
