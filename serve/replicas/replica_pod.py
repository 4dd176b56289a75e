"""Replica as a pod: launched, observed and ended through `infra`. Blocking; called in threads.

    begin    offers in the order of `placement` -> rent, send code, hand over a job of kind "service" with the engine
    look     the pod as seen by keepers and `status`; stage: startup progress of the engine
    end      no process or machine is left, and the local mirror keeps the log

A Version and a Member become journal rows. An engine is never restarted: a new replica replaces an ended engine. Like
all work of a pod, the replica outlives the process that launched it. Raises the errors of `infra.runs.launch` and
`infra.runs.pods`.
"""

import contextlib
import errno
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from infra.agent.environments import environment
from infra.agent.job import SETUP, Job, Limits, Step
from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers import Provider
from infra.records import Plan
from infra.runs import launch, observation, pods
from infra.runs.acceptance import terms_for
from infra.runs.observation import AskedParties, Observation, observe_pod
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.selection import registry
from infra.selection.machine_spec import expected_gpus
from infra.settings import Settings
from infra.transport.protocol import Transport
from serve import engines, own_run
from serve.gateway.keys import engine_key
from serve.policy.service_state import Member, Version, environ_of, served_name
from serve.replicas import placement
from serve.service import Probe, Service
from store import credentials

STEP, ENVIRONMENT = "engine", "environment"  # names of the steps in a pod
CACHE_THERE = (
    "../../../models"  # relative to a pod's code folder on an own machine: ~/.slipway/models, shared by all pods there
)
PORTS = range(20_000, 30_000)  # below the ports that systems use for outgoing connections
REMOVE_S = ASK_S = 60.0
ERROR_BYTES = 64_000  # of the end of a log; vLLM reports the error of its core some 60 lines above the end
PUT_IN_PLACE = 'test -d "$2" || mv -- "$1" "$2"; rm -rf -- "$1"; test -d "$2"'  # a second replica may have been first


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Startup progress of a replica, as reported by the pod."""

    phase: str = ENVIRONMENT
    """Current stage: environment, engine start, weights, compiling, first answer.

    The stages of a `run`: environment, setup, first answer."""
    engine_s: float | None = None
    """Seconds since the start of the engine; None = the environment is still being made."""
    told_at: float = 0.0
    """Time of the report by the pod's clock; 0 = no report yet."""
    read: int = 0
    """Bytes read of the engine's log."""


@dataclass
class ReplicaLauncher:
    """Backend of the replicas of the service `name`: launches, observes and ends pods."""

    name: str
    settings: Settings
    say: Callable[[str], None]
    seed: bytes = field(repr=False)
    """Seed of the engines' keys."""
    budget: str = ""
    """Budget that pays for rented replicas; "" = none."""

    def vendor(self, name: str) -> Provider:
        """Return the provider with this name. Raises UsageError for an unusable provider."""
        return registry.provider(self.settings, name)

    def probe_of(self, service: Service) -> Probe:
        """Return the probe of a service with the values of secrets."""
        return own_run.probe(service, self.settings)

    def launch(self, version: Version, member: Member) -> Op:
        """Launch a replica and return the row of the pod, with the engine loading."""
        shutil.rmtree(self.log_of(member.run), ignore_errors=True)  # logs of an earlier service with this name
        wanted = version.service
        is_own = version.engine == engines.OWN_RUN
        is_rehearsed, ways = bool(self.settings.rehearsal), placement.ways_of(version, self.settings)
        request = placement.request_of(wanted, member.run, version.gpu_bytes)
        (image, offers), *_ = placement.find_in_ways(ways, request, member.spot, self.settings, self.say)
        candidates, request = image.candidates, replace(request, image=image.booted)
        limits = Limits(reserve_bytes=self.settings.reserve_bytes, spend_micro_usd=member.cap_micro_usd)
        is_here = all(self.vendor(one.provider).is_here for one in offers)
        is_near = is_here or is_rehearsed  # pods of a rehearsal are processes of this machine
        is_sent = not (is_here or is_own) and "://" not in version.model
        tuning, name = wanted.slipway.engine, version.engine
        gpus = request.num_gpus
        if self.settings.rehearsal and name == "vllm" and environment.torch_build() != "cuda":
            name, gpus = "vllm-cpu", 1  # this machine does the work of the rented machine
        engine = engines.ReplicaConfig(
            engine=name,
            source=f"{CACHE_THERE}/{version.weights}" if is_sent else version.model,
            name=served_name(self.name, wanted),
            port=member.port,
            store=version.store if is_here else "",
            tuning=replace(tuning, num_gpus=gpus or tuning.num_gpus),
            bounds=wanted.slipway.limits,
        )
        steps: tuple[Step, ...] = (
            own_run.steps(
                wanted,
                STEP,
                is_near or not any(self.vendor(one.provider).is_rented for one in offers),
                "" if is_rehearsed else image.contained,
            )
            if is_own
            else (
                Step(
                    STEP,
                    ("-m", "serve.engines"),
                    engines.ENVIRONMENTS[name],
                    engines.config_of(engine),
                    max_restarts=0,
                ),
            )
        )
        rented = next((one for one in candidates if self.vendor(one).is_rented), candidates[0])
        secrets = self.secrets_of(version, member.run)
        terms = terms_for(self.settings, self.vendor(rented))
        job = Job(
            run=member.run,
            token="",
            steps=steps,
            kind="service",
            limits=limits,
            torch=environment.torch_build() if is_near else "cuda" if expected_gpus(request) else "cpu",
            environments=str(self.settings.environments) if is_near else "",
            environ=(
                {"SKYPILOT_SERVE_REPLICA_ID": str(member.number)}
                if is_own
                else {**_places_of(version.model), **environ_of(wanted)}
            ),
            secrets=tuple(secrets),
            num_gpus=0 if self.settings.rehearsal else expected_gpus(request),
            clock_scale=self.settings.clock_scale if self.settings.rehearsal else 1.0,
        )

        def prepare(op: Op, transport: Transport) -> None:
            send_model(Path(version.model), version.weights, op, transport, self.say)

        sent = own_run.carried(wanted) if is_own else ()
        plan = Plan(target="", store="", artifacts=(), job=job, request=request, carried=sent)
        terms = replace(
            terms, owner_kind="service", owner=self.name, prepare=prepare if is_sent else None, budget_name=self.budget
        )
        with self._journal() as journal:
            return launch.start(plan, offers, self.vendor, journal, ROOT, secrets, self.say, terms)

    def key_of(self, run: str) -> str:
        """Return the API key for the engine of `run`, against clients that bypass the gateway."""
        return engine_key(self.seed, run)

    def secrets_of(self, version: Version, run: str) -> dict[str, str]:
        """Return the secrets of the file and of the download of the model, and the key of an engine of ours."""
        names = credentials.KEYS.get(credentials.kind(version.model), ())
        found = {name: getattr(self.settings, name.lower()) for name in names}
        if "GOOGLE_CREDENTIALS" in found:
            found["GOOGLE_CREDENTIALS"] = credentials.google_key(found["GOOGLE_CREDENTIALS"])
        key = {} if version.engine == engines.OWN_RUN else {engines.KEY: self.key_of(run)}
        return {
            **own_run.secrets(version.service, self.settings),
            **{name: value for name, value in found.items() if value},
            **key,
        }

    def reach(self, op: Op) -> Transport:
        return self.vendor(op.vendor).reach(observation.pod_of(op))

    def observe(self, op: Op, asks: AskedParties) -> Observation:
        """Return the observed state of a replica's pod."""
        return observe_pod(op, self.vendor(op.vendor), asks)

    def stage(self, op: Op, progress: Mapping[str, Any], before: Stage, engine: str) -> Stage:
        """Return the stage after `before`, by the pod's progress. Raises SlipwayError for an unreachable pod."""
        began: dict[str, Any] = {one["name"]: one for one in progress.get("steps", ()) if one.get("started_at")}
        before = replace(before, told_at=progress.get("updated_at", 0.0))
        said = began.get(STEP)
        if said is None:
            return replace(before, phase=SETUP) if SETUP in began else before
        if engine == engines.OWN_RUN:  # A program of the user has no weights, and a log in no known form.
            return replace(before, phase=engines.FIRST_ANSWER, engine_s=said["elapsed_s"])
        start = max(0, before.read - engines.LONGEST_SAID)
        try:
            fresh = self.reach(op).read(observation.folder_of(op).log(STEP), start)
        except FileNotFoundError:
            fresh = b""
        at = engines.STARTING if before.phase == ENVIRONMENT else before.phase
        return replace(before, phase=engines.next_phase(at, fresh), engine_s=said["elapsed_s"], read=start + len(fresh))

    def end(self, op: Op, reason: str) -> None:
        """End a replica completely, and keep the log in the local mirror.

        Raises SlipwayError without proof of the end; a repeated call is safe.
        """
        provider = self.vendor(op.vendor)
        if op.is_live:
            if provider.is_rented and op.address:  # a rented machine cannot be read afterwards
                self._fetch_log(op)
            with self._journal() as journal:
                pods.end(provider, journal.op(op.token), journal, reason)
        if not provider.is_rented and op.address:
            self._fetch_log(op)
            self._remove(op)

    def last_error(self, op: Op) -> str:
        """Return the last error in the log of an ended engine, else the end of an earlier log; "" = none."""
        if op.address:
            self._fetch_log(op)
        for step in (STEP, SETUP, ENVIRONMENT):
            with contextlib.suppress(OSError), (self.log_of(op.run) / f"{step}.log").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - ERROR_BYTES))
                said = file.read().decode(errors="replace").rstrip()
                return engines.last_error(said) if step == STEP else said.rpartition("\n")[2]
        return ""

    def log_of(self, run: str) -> Path:
        """Return the folder of the engine's log after the end."""
        return RunHome.for_run(run, self.settings.homes).pod.logs

    def _fetch_log(self, op: Op) -> None:
        """Fetch the log if possible: an unreachable pod is ended all the same."""
        try:
            mirror.bring_logs(op, self.reach(op), RunHome.for_run(op.run, self.settings.homes))
        except (SlipwayError, OSError) as error:
            self.say(f"{op.run}: the log was not copied: {error}")

    def _remove(self, op: Op) -> None:
        """Remove the pod's copy of the code, which has no further use.

        Without removal, copies would pile up: replicas come and go for weeks.
        """
        root = observation.folder_of(op).root
        assert root.name == op.run
        script = 'test -e "$1/POD.json" || rm -rf -- "$1"'
        try:
            self.reach(op).run(["sh", "-c", script, "sh", str(root)], timeout_s=REMOVE_S)
        except SlipwayError as error:
            self.say(f"{op.run}: {root} stays behind: {error}")

    def _journal(self) -> Journal:
        """Open a journal; each thread needs a separate journal."""
        return Journal.open(self.settings.state_file)


def _places_of(model: str) -> dict[str, str]:
    """Return the variables that locate the store of a model, without secrets."""
    names = credentials.PLACES.get(credentials.kind(model), ())
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def send_model(folder: Path, weights: str, op: Op, transport: Transport, say: Callable[[str], None]) -> None:
    """Copy a model to the folder shared by all replicas on the machine, unless the model is there already."""
    cache = os.path.normpath(observation.folder_of(op).code / CACHE_THERE)
    target, draft = f"{cache}/{weights}", f"{cache}/.{weights}.{op.token}.draft"
    if transport.run(["test", "-d", target], timeout_s=ASK_S).exited == 0:
        return
    files = sorted(path for path in folder.iterdir() if path.is_file())
    say(f"{op.run}: sending the model, {sum(path.stat().st_size for path in files) / 1e9:.2f} GB")
    for path in files:
        mirror.put(transport, path, f"{draft}/{path.name}")
    done = transport.run(["sh", "-c", PUT_IN_PLACE, "sh", draft, target], timeout_s=ASK_S)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: the model was not copied: {done.stderr.strip()}")


def free_port(taken: Sequence[int]) -> int:
    """Return a random port of PORTS that is free here and not in `taken`.

    On a different machine the port may be in use: the engine there then reports the conflict and ends.
    """
    while True:
        port = secrets.choice(PORTS)  # libraries seed `random`, in each process alike
        if port in taken:
            continue
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # every other port would fail in the same way
                raise
