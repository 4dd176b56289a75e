"""Provider `skypilot`: each pod is a managed job, and every request goes to SkyPilot's API server.

SkyPilot picks the machines, replaces preempted machines, and releases the machines after the job. A submission contains
the job with its code, so the provider offers no pods without a job.
"""

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.agent import peer_addresses
from infra.agent.job import Limits, NodeGroup
from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.market.filters import format_offer
from infra.names import check_name, random_word
from infra.providers import Abilities
from infra.records import Account, Offer, Plan, Pod, Request
from infra.runs import pods
from infra.runs.engine import RunEngine, RunStart
from infra.runs.sync.sync_step import with_uploader
from infra.runs.timing import Say, stage
from infra.settings import Settings
from infra.units import duration
from packs.skypilot.control import bundle, price_table, task
from packs.skypilot.control.client import LAUNCH_S, Client, SkyPilotAnswer, SkyPilotTimeout
from packs.skypilot.control.job_view import ENDING, OVER, JobView
from packs.skypilot.control.price_table import OptimizerChoice
from packs.skypilot.control.served import Services

NAME = "skypilot"
STATES = {  # values of `Pod.state`; any other status is booting
    "RUNNING": "running",
    **dict.fromkeys(("PENDING", "SUBMITTED", "STARTING"), "queued"),
    **dict.fromkeys(ENDING, "ending"),
}
OLD_S = 60.0  # age in seconds from which an answer no longer describes the present
# GPU kinds with the same name in SkyPilot's catalogues and in our table.
GPU_KINDS = ("L4", "L40S", "A100-80GB", "H100", "H200", "B200")
Submission = Callable[[str, Limits], Mapping[str, Any]]  # builds the task from a token and the remaining limits


@dataclass(frozen=True)
class ManagedJobs(RunEngine):
    """Run engine and provider for SkyPilot's managed jobs."""

    client: Client
    bundles: Path
    """Root of the code bundles that SkyPilot uploads, one folder per token."""
    submission: Submission | None = None
    is_service: bool = False
    """True if the submission is a service for SkyServe."""

    name, title = NAME, "SkyPilot"
    gpu_kinds = GPU_KINDS
    services = "packs.skypilot.control.service_file:SkyServeFiles"
    is_here, is_rented = False, True
    restarts_runs = is_run_engine = True
    pod_store = ""
    settle_s = 120.0
    clock_scale = 1.0
    skew_problem = ""
    can = Abilities(spot=True, self_terminate="engine", settle_s=120.0)

    @staticmethod
    def from_settings(settings: Settings) -> "ManagedJobs":
        beside = settings.state_file.with_name(f"{settings.state_file.stem}-packs") / NAME
        return ManagedJobs(Client.for_environments(settings.environments, beside), beside)

    def account(self) -> Account:
        """Return user and URL of the API server; SkyPilot reports no balance."""
        found = self.client.ask("server")
        return Account(provider=self.name, owner=f"{found['user'] or 'unknown user'} at {found['url']}")

    def offers(self, request: Request) -> list[Offer]:
        return self.catalog(request)

    def catalog(self, request: Request) -> list[Offer]:
        """Return the offer that SkyPilot's optimizer would choose now for the requested machine."""
        return [self.price_offers({"resources": task.resources_of(request)}, request.nodes).chosen]

    def price_offers(self, keys: Mapping[str, Any], nodes: int) -> OptimizerChoice:
        """Return the offers that SkyPilot considers now, priced per node. Raises NoOffer, UsageError."""
        asked = {"num_nodes": nodes, "run": "true", **{key: keys[key] for key in task.ENGINE_KEYS if keys.get(key)}}
        return price_table.read(self.client.ask("price", task=asked), nodes, self.name, time.time())

    def job_keys(
        self, said: Mapping[str, Any], typed: Mapping[str, Any], request: Request, where: str
    ) -> tuple[dict[str, Any], list[str]]:
        keys = {key: said[key] for key in (*task.ENGINE_KEYS, "envs") if said.get(key)}
        keys["resources"], notes = task.overlaid(said.get("resources") or {}, typed, request)
        mounts = [
            one.get("mode", "MOUNT") for one in (keys.get("file_mounts") or {}).values() if isinstance(one, Mapping)
        ]
        task.check(keys, request.nodes, any(mode.upper() != "COPY" for mode in mounts), where)
        return keys, notes

    def quote(self, plan: Plan, tell: Say) -> list[Offer]:
        """Return the offer that SkyPilot would choose for the plan now, at the price for the limits of the run.

        Report the alternatives to `tell`.
        """
        keys = keys_of(plan)
        task.check(keys, plan.request.nodes, False, self.name)
        found = self.price_offers(keys, plan.request.nodes)
        for one in found.alternatives:
            tell(f"SkyPilot also considered {format_offer(one)}")
        if found.note:
            tell(found.note)
        return [found.for_limits]

    def submit(self, start: RunStart) -> Op:
        """Submit the run as a managed job: write the code bundle, record the intent in the journal, call SkyPilot.

        The limits of the returned operation cover all nodes: spend limit and hourly price are multiplied by their
        number.
        """
        plan, terms = start.plan, start.terms
        assert plan.job is not None
        if plan.job.kind == "service":
            raise UsageError(f"{plan.request.run} is a service: inv serve.up FILE --provider {NAME}")
        nodes = plan.request.nodes
        group = NodeGroup()
        if nodes > 1:
            # Ports below the ephemeral range; node 0 listens on both ports.
            port, words_port = peer_addresses.free_ports(2)
            group = NodeGroup(run=plan.request.run, port=port, words_port=words_port, key=random_word(32))
        each = plan.job.limits
        whole = replace(each, spend_micro_usd=each.spend_micro_usd and each.spend_micro_usd * nodes)
        offer = replace(start.offers[0], micro_usd_per_hour=start.offers[0].micro_usd_per_hour * nodes)
        job = with_uploader(
            replace(plan.job, limits=whole, group=group, self_terminate_calls=()), plan.store, plan.request.run
        )

        def task_for(token: str, limits: Limits) -> dict[str, Any]:
            limits = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
            own, folder = replace(job, run=plan.request.run, token=token, limits=limits), self.bundles / token
            with stage("bundle", start.say) as told:
                told += bundle.write_bundle(own, plan, start.root, folder, terms.asked)
            return task.task_of(
                own, nodes=nodes, keys=keys_of(plan), bundle=folder, secrets=start.secrets, now=self.now()
            )

        row = pods.RowDraft(
            target=plan.target,
            store=plan.store,
            recoveries=terms.recoveries,
            admit=terms.admit,
            owner_kind=terms.owner_kind,
            owner=terms.owner,
            spec_hash=terms.spec_hash,
            budget=whole.spend_micro_usd,
            asked=terms.asked,
        )
        with stage("submit", start.say):
            jobs = replace(self, submission=task_for)
            op = pods.rent(jobs, replace(plan.request, nodes=1), offer, job, start.journal, row)
        op = start.journal.note(op, last_seen_at=int(self.now()))
        return start.journal.advance(op, "armed")

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        if self.submission is None:
            raise UsageError("skypilot runs whole jobs and has no pods without work; run: inv launch")
        if self.is_service:
            self.served.write_down(token, {})  # From now on, a look-up of the token asks SkyServe.
            self.client.ask("serve", task=self.submission(token, limits), name=token, timeout_s=LAUNCH_S)
            return self.served.pod(token)
        said = self.client.ask("launch", task=self.submission(token, limits), timeout_s=LAUNCH_S)
        return _pod({"job_id": said["job_id"], "job_name": token, "status": "PENDING"})

    def find(self, pod: str) -> Pod | None:
        """Return the job as a pod, possibly from a cached answer; verify an absence with a fresh request."""
        if self.served.has(pod):
            return self.served.find(pod)
        seen = self.read_row(pod)
        row = seen.answer or self.row_of(pod)
        if row and row["status"] not in OVER and time.time() - seen.at > OLD_S:
            raise SkyPilotTimeout(f"skypilot: no answer yet; the last answer is {duration(time.time() - seen.at)} old")
        return _pod(row) if row and row["status"] not in OVER else None

    @property
    def served(self) -> Services:
        """Return the services of this API server."""
        return Services(self.client, self.bundles)

    def list(self) -> "list[Pod]":
        return [*(_pod(row) for row in self.client.ask("queue") if row["status"] not in OVER), *self.served.listed()]

    def delete(self, pod_id: str) -> None:
        if self.served.has(pod_id):
            return self.served.end(pod_id)
        row = self.row_of(pod_id)
        if row and row["status"] not in (*OVER, *ENDING):
            self.client.ask("cancel", job_id=row["job_id"])

    def reach(self, pod: Pod) -> JobView:
        """Return the view of the job, with SkyPilot's data as a pod's files."""
        key = pod.pod_id or pod.token
        if self.served.has(key):
            return self.served.view(pod, lambda: self.delete(key))
        return JobView(
            row=lambda: self.read_row(key),
            log=lambda tail, since: str(
                self.client.read_cached("log", job_id=int(self._number(key)), tail=tail, since=since).answer
            ),
            end=lambda: self.delete(key),
            token=pod.token,
            run_name=pod.run,
        )

    def row_of(self, pod: str) -> Mapping[str, Any] | None:
        """Return the current queue row of the job with this number or token, or None."""
        return _row(self.client.ask("queue", **_asking(pod)), pod) or None

    def read_row(self, pod: str) -> SkyPilotAnswer:
        """Return the job's queue row ({} for an unknown job) with the time of the read; both may be cached."""
        known = self.client.read_cached("queue", **_asking(pod))
        return SkyPilotAnswer(_row(known.answer, pod), known.at)

    def delete_local_files(self, token: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.bundles / check_name(token))

    def now(self) -> float:
        return time.time()

    def billed(self, pod_id: str) -> int | None:
        return None

    def _number(self, key: str) -> str:
        if key.isdigit():
            return key
        row = self.row_of(key)
        if row is None:
            raise SlipwayError(f"skypilot: SkyPilot has no job {key}")
        return str(row["job_id"])


def keys_of(plan: Plan) -> dict[str, Any]:
    """Return SkyPilot's keys from the job file, or the keys derived from the request."""
    return dict(plan.engine_keys) if plan.engine_keys else {"resources": task.resources_of(plan.request)}


def _asking(pod: str) -> dict[str, Any]:
    return {"job_ids": [int(pod)]} if pod.isdigit() else {"name": pod}


def _row(rows: Sequence[Mapping[str, Any]], pod: str) -> Mapping[str, Any]:
    return next((one for one in rows if pod in (str(one["job_id"]), one["job_name"])), {})


def _pod(row: Mapping[str, Any]) -> Pod:
    status = str(row["status"] or "")
    note = f"SkyPilot calls it {status}"
    note += f", recovered {row['recovery_count']} times" if row.get("recovery_count") else ""
    return Pod(
        provider=NAME,
        pod_id=str(row["job_id"]),
        token=str(row["job_name"] or ""),
        run="",
        address=address_of(row["job_id"]),
        state=STATES.get(status, "booting"),
        note=note,
        name=str(row["job_name"] or ""),
        created_at=int(row.get("submitted_at") or 0),
    )


def address_of(job_id: Any) -> str:
    return f"managed job {job_id} of SkyPilot"
