"""Receipt of a run: `run.json` beside the logs, with all data needed to repeat the run.

`write` records the commit and the uncommitted changes (`run.diff`), the environment, the job with seeds and
fingerprints of all inputs and outputs, the machine and the price. Secrets appear by name only. `differences` compares a
receipt with the current checkout.
"""

import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flows.planning import extensions, learned
from infra.agent.environments import environment
from infra.agent.job import Job, write_durably
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.records import Offer
from infra.runs.run_home import RunHome, read_record, write_record
from infra.settings import Settings
from infra.units import count, per_hour
from store import strict_records
from store.artifacts.artifacts import Store
from trainer.fingerprints import CheckoutCode

SCHEMA = 1
MOST_DIFF_BYTES = 8 << 20
WEIGHTS = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    run: str
    at: float
    """UTC epoch seconds."""
    commit: str
    """Commit of the checkout; "" = no git repository."""
    diff_sha256: str
    """SHA-256 of the uncommitted changes; "" = no changes."""
    environment: str
    """Key of the training environment: requirements, pins and Python version."""
    provider: str
    micro_usd_per_hour: int
    asked: Mapping[str, Any]
    """Launch flags about machines and limits."""
    offer: Mapping[str, Any]
    store: str
    job: Mapping[str, Any]
    extensions: Sequence[Mapping[str, str]] = ()
    """The user's own code: name, file or module, SHA-256 and use. The job contains the text of the code."""
    made_steps: Mapping[str, int] = field(default_factory=dict)
    """Number of steps of each training that a limit has shortened, by the name of the step; known at the end."""
    schema: int = SCHEMA

    @property
    def steps(self) -> Sequence[Mapping[str, Any]]:
        return [one for one in self.job["steps"] if "making" in one["config"]]


def write(op: Op, settings: Settings, offer: Offer | None = None) -> Path:
    """Write the receipt of a starting run; return the path."""
    home, diff = RunHome.for_run(op.run, settings.homes), _git("diff", "HEAD", "--binary")
    job = json.loads(op.job)
    torch = job.get("torch") or "cpu"
    made = Receipt(
        run=op.run,
        at=time.time(),
        commit=CheckoutCode(ROOT).commit,
        diff_sha256=hashlib.sha256(diff).hexdigest() if diff else "",
        environment=environment.read_spec("train", ROOT, torch).key,
        provider=op.vendor,
        micro_usd_per_hour=op.rate,
        asked=json.loads(op.asked) if op.asked else {},
        offer={key: value for key, value in asdict(offer).items() if value} if offer else {},
        store=op.store,
        job=job,
        extensions=extensions.of_job(
            job, op.vendor, settings, json.loads(op.request or "{}").get("machine_filter", "")
        ),
    )
    if diff and len(diff) <= MOST_DIFF_BYTES:
        write_durably(home.receipt_diff, diff.decode("utf-8", "surrogateescape").encode("utf-8", "replace").decode())
    write_record(home.receipt, asdict(made))
    return home.receipt


def add_made_steps(op: Op, settings: Settings) -> None:
    """Add the numbers of steps of shortened trainings to the receipt of an ended run. Raises SlipwayError, OSError."""
    path = RunHome.for_run(op.run, settings.homes).receipt
    if not path.exists():
        return
    progress, _ = learned.last_report(op, settings)
    made = {one["name"]: (one.get("result") or {}).get("steps") for one in progress.get("steps") or ()}
    planned = planned_steps(json.loads(op.job))
    shortened = {name: number for name, number in made.items() if learned.is_shortened(number, planned.get(name))}
    if shortened:
        write_record(path, {**read_record(path), "made_steps": shortened})


def planned_steps(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned number of steps of each training of a job, by the name of the step."""
    return {one["name"]: (one["config"].get("spec") or {}).get("steps") for one in job["steps"]}


def read(op: Op, settings: Settings) -> Receipt:
    """Return the receipt of a run. Raises UsageError without a receipt, or if the journal has other steps of the run.

    The commands in a receipt run on this machine, so they must equal the commands in the journal.
    """
    path = RunHome.for_run(op.run, settings.homes).receipt
    try:
        said = read_record(path)
        if said.get("schema") != SCHEMA:
            raise UsageError(f"{path}: schema {said.get('schema')}; this version of Slipway reads schema {SCHEMA}")
        found = strict_records.read(Receipt, said)
        Job.from_json(json.dumps(found.job))
    except FileNotFoundError:
        raise UsageError(
            f"{op.run} has no receipt: {path} does not exist; only the launch of a run writes the receipt"
        ) from None
    except UsageError:
        raise
    except (SlipwayError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    if found.run != op.run or found.store != op.store or _work_of(found.job) != _work_of(json.loads(op.job)):
        raise UsageError(
            f"{path} is not the receipt of {op.run}: the journal records other steps for the run. Nothing was done; "
            "check the file before you use the receipt"
        )
    return found


def _work_of(job: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the name, command and configuration of each step with an output artifact."""
    return [(one["name"], one["words"], one["config"]) for one in job["steps"] if "making" in one["config"]]


def differences(one: Receipt, settings: Settings) -> list[str]:
    """Return display texts for the differences between the current checkout and the run; [] without differences."""
    found = []
    commit, diff = CheckoutCode(ROOT).commit, _git("diff", "HEAD", "--binary")
    if commit != one.commit:
        found.append(f"code: commit {commit[:12]} now, {one.commit[:12] or 'not known'} at the launch")
    if (hashlib.sha256(diff).hexdigest() if diff else "") != one.diff_sha256:
        then = "had uncommitted changes (run.diff)" if one.diff_sha256 else "had no uncommitted changes"
        found.append(
            f"code: the checkout {'has other changes' if diff else 'has no changes'} beside the commit; the launch "
            f"{then}"
        )
    torch = one.job.get("torch") or "cpu"
    if environment.read_spec("train", ROOT, torch).key != one.environment:
        found.append("environment: the pins or the Python version differ from the launch")
    found += extensions.changed_extensions(one.extensions)
    planned = planned_steps(one.job)
    for name, made in one.made_steps.items():
        found.append(
            f"steps: {name} has made {made:,} of {planned.get(name)} steps to fit the limit; "
            "a run without a limit makes all"
        )
    for name, fingerprint in inputs_of(one.steps).items():
        if problem := Store(one.store).find(name, fingerprint).problem:
            found.append(f"input: {name} in {one.store} is {problem}")
    if one.micro_usd_per_hour:
        found.append(
            f"price: {per_hour(one.micro_usd_per_hour)} on {one.provider} at the launch; current prices: inv offers"
        )
    return found


def inputs_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the fingerprints of all artifacts read but not made by the steps, by name."""
    made = {one["config"]["making"]["name"] for one in steps}
    read = [each for one in steps for each in one["config"]["making"]["inputs"].values()]
    return {one["name"]: one["fingerprint"] for one in read if one["name"] not in made}


def rebased(steps: Sequence[Mapping[str, Any]], store: str) -> list[dict[str, Any]]:
    """Return a copy of the steps with `store` for inputs and outputs."""
    found = []
    for one in json.loads(json.dumps(list(steps))):
        one["config"]["making"]["store"] = store
        found.append(one)
    return found


def carry_inputs(one: Receipt, target: Store) -> list[str]:
    """Copy the input artifacts of a run to a store; return the names. Raises StoreError for a missing artifact."""
    source, carried = Store(one.store), []
    for name, fingerprint in inputs_of(one.steps).items():
        manifest = source.manifest_of(name, fingerprint)
        target.publish(source.path(name, fingerprint), name, fingerprint, manifest.about, manifest.flat)
        carried.append(name)
    return carried


def weights(store: Store, name: str, fingerprint: str) -> dict[str, str]:
    """Return the SHA-256 of each weight file of an artifact, by path; {} without the artifact."""
    if store.find(name, fingerprint).problem:
        return {}
    files = store.manifest_of(name, fingerprint).files
    return {one.path: one.sha256 for one in files if one.path.endswith(WEIGHTS)}


def machine_of(one: Receipt, step: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the hardware and software of a phase (`trainer.device.Machine.about`); {} if unknown."""
    making, store = step["config"]["making"], Store(one.store)
    if "keeping" not in step["config"] or store.find(making["name"], making["fingerprint"]).problem:
        return {}
    found = store.manifest_of(making["name"], making["fingerprint"]).about.get("machine")
    return found if isinstance(found, Mapping) else {}


def machine_words(machine: Mapping[str, Any]) -> str:
    """Return a display text for the hardware and software of a phase."""
    what = count(machine["threads"], "thread") if machine["device"] == "cpu" else machine["device"]
    return f"{what}, PyTorch {machine['torch']}, {machine['units']}"


def environ_of(one: Receipt, step: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables of a step: the variables of the job, and the number of CPU threads if known.

    A different number of threads changes the order of sums, and so the last bits of the results.
    """
    machine = machine_of(one, step)
    threads = {"OMP_NUM_THREADS": str(machine["threads"])} if machine.get("device") == "cpu" else {}
    return {**one.job["environ"], **threads}


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _git(*words: str) -> bytes:
    """Return the output of git for this checkout; b"" after an error or without git."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return b""
    return done.stdout if done.returncode == 0 else b""
