"""Worker process with SkyPilot's SDK behind a Unix socket, run by the interpreter of the `skypilot` environment.

    worker.py FOLDER NAME IDLE_S      socket, lock and cached answers: FOLDER/NAME.sock, .lock, .json

Importing SkyPilot takes seconds and each request about a job takes seconds more, so one worker serves an installation
and exits after IDLE_S seconds without requests. The worker greets a client with `{"pid": ...}`; the client sends one
line, {"what": ..., "given": {...}}, and receives one line: {"answer": ..., "at": ...} or {"kind": ..., "error": ...,
"at": ...}, with `at` as the time of the request to SkyPilot. A request with `since` accepts a cached answer from
`since` or later; the worker reads again when the cached answer is older than FRESH_S, and returns the cached answer if
the read takes longer than `patience_s`.

The module imports none of our code. SkyPilot's output goes to stderr.
"""

import contextlib
import fcntl
import io
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

FRESH_S = 5.0
STUCK_S = 900.0  # a request running longer than this does not keep the worker alive
LATE_S = 60.0  # a read running longer than this is started again
MOST_KEPT = 100  # answers
LONGEST_LOG = 32 << 20  # characters of a job's output, counted from the end
LONGEST_KEPT = 1 << 18  # longest answer stored on disk
KINDS = {  # SkyPilot's exceptions and the error kinds for the client
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
FIELDS = [
    "job_id",
    "job_name",
    "status",
    "submitted_at",
    "start_at",
    "end_at",
    "recovery_count",
    "failure_reason",
    "cloud",
    "region",
    "cluster_resources",
    "user_name",
]


def server() -> dict:
    """Return URL, version and user of the API server; raise if no server answers. Never starts a server."""
    from sky.client import sdk
    from sky.server import common

    sdk.reload_config()  # The configuration may have changed since the start of this process.
    url = common.get_server_url()
    common.get_api_server_status_response.cache_clear()
    status, info = common.check_server_healthy(url)
    if status.value == "needs_auth":
        raise PermissionError(f"{common.redact_url_password(url)} wants you to log in")
    import sky

    return {
        "url": common.redact_url_password(url),
        "version": info.version,
        "client": sky.__version__,
        "user": (info.user or {}).get("name", ""),
    }


def validate(task: dict) -> dict:
    """Return the task as SkyPilot parses it, without a request to the API server."""
    import sky

    return sky.Task.from_yaml_config(task).to_yaml_config()


def limits() -> dict:
    """Return the unsupported features of each cloud, by SkyPilot's names."""
    from sky.utils.registry import CLOUD_REGISTRY

    found = {}
    for name, cloud in CLOUD_REGISTRY.items():
        table = getattr(cloud, "_CLOUD_UNSUPPORTED_FEATURES", {})
        found[name] = sorted(one.value for one in table)
    return found


def price(task: dict) -> str:
    """Return the optimizer's table of candidates and prices for the task, as the API server prints the table."""
    import sky

    server()
    made = sky.Task.from_yaml_config(task)
    with sky.Dag() as dag:
        dag.add(made)
    said = io.StringIO()
    sky.stream_and_get(sky.optimize(dag), output_stream=said)
    return said.getvalue()[-LONGEST_LOG:]


def launch(task: dict) -> dict:
    """Submit a managed job; return its number."""
    import sky

    server()
    name = task["name"]  # from_yaml_config removes keys from the task
    ids, _ = sky.get(sky.jobs.launch(sky.Task.from_yaml_config(task), name=name))
    return {"job_id": ids[0]}


def queue(job_ids: Any = None, name: Any = None) -> list:
    """Return this user's managed jobs with their states, optionally filtered by number or name."""
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


def check_service(task: dict) -> None:
    """Raise for a service that SkyServe refuses; without a request to the API server."""
    from sky.serve import serve_utils

    serve_utils.validate_service_task(_service_task(task), pool=False)


def _service_task(task: dict) -> Any:
    """Return the task of a service with the port of the replicas, which `sky serve up` sets before the request."""
    import sky
    from sky.utils import resources_utils

    made = sky.Task.from_yaml_config(task)
    if made.service.ports is None:
        ports = {port for one in made.resources for port in resources_utils.port_ranges_to_set(one.ports or [])}
        if len(ports) != 1:
            raise ValueError(f"a service has one port; resources.ports has {len(ports)}: write service.ports")
        made.service.set_ports(str(ports.pop()))
    return made


def serve(task: dict, name: str) -> None:
    """Start a service; return when SkyServe's controller has the service."""
    import sky

    server()
    sky.get(sky.serve.up(_service_task(task), name))


def services(name: Any = None) -> list:
    """Return the services of the API server with their replicas, or the service `name` as a list of at most one.

    Without a controller of SkyServe there is no service; a question about a single service then raises.
    """
    import sky

    server()
    try:
        records = sky.get(sky.serve.status([name] if name else None))
    except sky.exceptions.ClusterNotUpError:
        if name:
            raise
        return []
    return [_service(one) for one in records]


def _service(said: dict) -> dict:
    replicas = [
        {
            "id": one["replica_id"],
            "cluster": one["name"],
            "state": getattr(one["status"], "value", one["status"]),
            "version": one.get("version"),
            "spot": bool(one.get("is_spot")),
            "launched_at": one.get("launched_at"),
            "where": "/".join(str(one[key]) for key in ("cloud", "region") if one.get(key)),
            "machine": one.get("resources_str") or "",
        }
        for one in said.get("replica_info") or ()
    ]
    status = said["status"]
    return {
        "name": said["name"],
        "state": getattr(status, "value", status),
        "endpoint": said.get("endpoint") or "",
        "versions": list(said.get("active_versions") or ()),
        "version": said.get("version"),
        "replicas": replicas,
    }


def end_service(name: str, purge: bool = False) -> None:
    """Ask SkyServe to end a service; `purge` also removes the record of a failed service."""
    import sky

    server()
    sky.get(sky.serve.down([name], purge=purge))


def has_cluster(name: str) -> bool:
    """Return whether SkyPilot has a record of a cluster, also of a cluster that SkyServe made.

    SkyPilot's list of clusters omits clusters of services; a question about the endpoints of a cluster does not.
    """
    import sky

    server()
    try:
        sky.get(sky.endpoints(name))
    except sky.exceptions.ClusterNotUpError as error:
        return error.cluster_status is not None or "not found" not in str(error)
    except ValueError:  # a cloud without endpoints
        return True
    return True


def end_cluster(name: str) -> None:
    import sky

    server()
    sky.get(sky.down(name))


def service_log(name: str, replica_id: Any = None, tail: Any = None) -> str:
    """Return the output of a replica, or of the controller of a service; at most the last `LONGEST_LOG` characters."""
    import sky

    server()
    part = "controller" if replica_id is None else "replica"
    said = TailBuffer()
    sky.serve.tail_logs(name, part, replica_id=replica_id, follow=False, tail=tail, output_stream=said)
    return said.getvalue()[-LONGEST_LOG:]


class TailBuffer(io.StringIO):
    """Stream with at least the last `LONGEST_LOG` characters, and at most twice as many, of the written text."""

    def write(self, text: str) -> int:
        """Append `text`, and drop the oldest text beyond twice the limit."""
        super().write(text)
        if self.tell() > 2 * LONGEST_LOG:
            kept = self.getvalue()[-LONGEST_LOG:]
            self.seek(0)
            self.truncate()
            super().write(kept)
        return len(text)


def log(job_id: int, tail: Any = None) -> str:
    """Return the job's output, or the last `tail` lines; at most the last `LONGEST_LOG` characters."""
    import sky

    server()
    said = TailBuffer()
    sky.jobs.tail_logs(job_id=job_id, follow=False, tail=tail, output_stream=said)
    return said.getvalue()[-LONGEST_LOG:]


def kind_of(error: BaseException) -> str:
    if isinstance(error, ImportError):
        return "missing"
    if isinstance(error, PermissionError):
        return "auth"
    return next((KINDS[one.__name__] for one in type(error).__mro__ if one.__name__ in KINDS), "other")


def reply(what: str, given: dict) -> dict:
    """Return the answer to a request, or the error with its kind, and the time of the request."""
    at = time.time()
    try:
        return {"answer": QUESTIONS[what](**given), "at": at}
    except (Exception, SystemExit) as error:  # every error of SkyPilot is an answer
        name = "" if kind_of(error) != "other" else f"{type(error).__name__}: "
        return {"kind": kind_of(error), "error": f"{name}{error}", "at": at}


OF_JOBS = (server, validate, limits, price, launch, queue, cancel, log)
OF_SERVICES = (check_service, serve, services, end_service, has_cluster, end_cluster, service_log)
QUESTIONS = {one.__name__: one for one in (*OF_JOBS, *OF_SERVICES)}


class Reading:
    """Running read from SkyPilot; clients with the same request wait for the same result."""

    def __init__(self) -> None:
        self.began_at = time.monotonic()
        self.is_over = threading.Event()
        self.answer: dict = {}


class KnownAnswers:
    """Cache of the last answer to each read-only request, in memory and on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turn = threading.Lock()
        self.known: dict = {}
        self.under_way: dict = {}
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError):  # missing or damaged: start empty
            self.known = dict(json.loads(path.read_bytes()))

    def get_answer(self, what: str, given: dict, since: float, patience_s: float) -> dict:
        """Return an answer read at or after `since` (UTC epoch seconds), preferably at most `FRESH_S` old.

        When a cached answer from `since` or later exists, wait at most `patience_s` seconds for a fresh answer;
        otherwise wait until SkyPilot answers.
        """
        key, began_at = json.dumps([what, given], sort_keys=True), time.time()
        until = time.monotonic() + patience_s
        while True:
            with self.turn:
                known = self.known.get(key, {})
                if known and known["at"] >= max(since, began_at - FRESH_S):
                    return known
                reading = self.under_way.get(key)
                if reading is None or time.monotonic() - reading.began_at > LATE_S:
                    reading = self._begin(key, what, given)
            will_do = known and known["at"] >= since
            if not reading.is_over.wait(max(0.0, until - time.monotonic()) if will_do else None):
                return known
            if "error" in reading.answer and reading.answer["at"] >= since:
                return reading.answer

    def _begin(self, key: str, what: str, given: dict) -> Reading:
        reading = self.under_way[key] = Reading()
        threading.Thread(target=self._read, args=(reading, key, what, given), daemon=True).start()
        return reading

    def _read(self, reading: Reading, key: str, what: str, given: dict) -> None:
        reading.answer = reply(what, given)
        with self.turn:
            if self.under_way.get(key) is reading:
                del self.under_way[key]
            if "answer" in reading.answer and reading.answer["at"] >= self.known.get(key, reading.answer)["at"]:
                self.known.pop(key, None)  # keep insertion order by age, newest last
                self.known[key] = reading.answer
                self.known = dict(list(self.known.items())[-MOST_KEPT:])
                self._write()
        reading.is_over.set()

    def _write(self) -> None:
        short = {key: said for key, said in self.known.items() if len(str(said["answer"])) <= LONGEST_KEPT}
        draft = self.path.with_suffix(".draft")
        with contextlib.suppress(OSError):  # a full disk: the next worker reads again
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(short, file, default=str)
            draft.replace(self.path)


class SkyPilotWorker:
    """Server for all clients; exits after `idle_s` without requests, or when the socket is removed or replaced."""

    def __init__(self, path: Path, idle_s: float) -> None:
        self.path, self.idle_s = path, idle_s
        self.memory = KnownAnswers(path.with_suffix(".json"))
        self.turn = threading.Lock()
        self.asked: dict = {}  # start of each running request, by connection
        self.asked_at = time.monotonic()

    def run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            number = self._bind(listener)
            listener.listen(64)
            listener.settimeout(min(1.0, self.idle_s))
            while self._is_needed(number):
                with contextlib.suppress(TimeoutError):
                    caller, _ = listener.accept()
                    with self.turn:
                        self.asked[caller] = self.asked_at = time.monotonic()
                    threading.Thread(target=self._serve, args=(caller,), daemon=True).start()
            if self._is_ours(number):
                self.path.unlink()

    def _bind(self, listener: socket.socket) -> int:
        """Bind the socket by file name, because the full path may exceed the limit; return the inode of the socket."""
        self.path.unlink(missing_ok=True)
        here, mask = os.getcwd(), os.umask(0o177)
        os.chdir(self.path.parent)
        listener.bind(self.path.name)
        os.umask(mask)
        os.chdir(here)
        return self.path.stat().st_ino

    def _is_ours(self, number: int) -> bool:
        try:
            return self.path.stat().st_ino == number
        except FileNotFoundError:
            return False

    def _is_needed(self, number: int) -> bool:
        now = time.monotonic()
        with self.turn:
            if any(now - since < STUCK_S for since in self.asked.values()):
                return True
            return now - self.asked_at < self.idle_s and self._is_ours(number)

    def _serve(self, caller: socket.socket) -> None:
        try:
            with caller, caller.makefile("rw", encoding="utf-8") as stream:
                self._send(stream, {"pid": os.getpid()})
                line = stream.readline()
                if line:
                    asked = json.loads(line)
                    what, given = asked["what"], asked["given"]
                    looks = "since" in asked
                    said = (
                        self.memory.get_answer(what, given, asked["since"], asked["patience_s"])
                        if looks
                        else reply(what, given)
                    )
                    self._send(stream, said)
        except OSError:  # the client has disconnected
            pass
        finally:
            with self.turn:
                del self.asked[caller]
                self.asked_at = time.monotonic()

    @staticmethod
    def _send(stream: Any, said: dict) -> None:
        stream.write(json.dumps(said, default=str) + "\n")
        stream.flush()


def main(folder: str, name: str, idle_s: str) -> None:
    os.dup2(2, 1)
    path = Path(folder, f"{name}.sock")
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # a different worker runs or is starting
    SkyPilotWorker(path, float(idle_s)).run()
    os._exit(0)  # abandon requests that SkyPilot never answers


if __name__ == "__main__":
    main(*sys.argv[1:])
