"""The progress of a pod as a small file, replaced atomically.

    agent's state + records appended by steps -> state/progress.json

The agent is the only writer. Values of secrets are masked in the content.
"""

import base64
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set
from urllib.parse import quote

from infra.agent import untrusted_json
from infra.agent.execution import timeline
from infra.agent.execution.utilization import OtherLoad, UtilizationSampler
from infra.agent.job import SCHEMA, Job, PodFolder
from infra.agent.limits import awake_s
from infra.agent.shortage import retry_shortages, tolerate_shortage
from infra.agent.state import say, try_read_json, try_write_json

WRITE_EVERY_S = 0.5
SHORTEST = 8  # shorter values are masked only verbatim, because a short encoded text may be a coincidence
GPUS = "gpus"  # name of the GPU history log
NOTE_EVERY_S = 1.0
MARK_EVERY = 0.05  # share of a step's work between two time marks


class Redactor:
    """A filter to mask the values of secrets, in all common encodings, in any JSON value."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        # Longest first, because a value may be part of a longer value.
        spelt = ((form, name) for name, value in secrets.items() if value for form in _spellings(value))
        self.secrets = sorted(spelt, key=lambda one: (-len(one[0]), one))

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret, name in self.secrets:
                value = value.replace(secret, f"[{name}]")
        elif isinstance(value, dict):
            return {self(key): self(one) for key, one in value.items()}
        elif isinstance(value, list):
            return [self(one) for one in value]
        return value


def _spellings(secret: str) -> Set[str]:
    """Return the encodings of a secret: verbatim, URL-quoted, hex and base64.

    For base64, only the characters that do not depend on neighboring bytes.
    """
    raw = secret.encode()
    found = {secret}
    if len(raw) >= SHORTEST:
        found |= {quote(secret, safe=""), raw.hex(), raw.hex().upper()}
        for lead in range(3):
            code = base64.b64encode(b"\0" * lead + raw).decode()
            code = code[4 if lead else 0 : -4 if (lead + len(raw)) % 3 else None]
            found |= {code, code.replace("+", "-").replace("/", "_")}
    return found


class RecordTail:
    """A reader of records appended to a file since the last read."""

    @retry_shortages
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rest = b""
        with open(path, "ab") as file:
            self.offset = file.tell()

    def read(self) -> List[Dict[str, Any]]:
        """Return the new records on complete lines.

        Lines that are not records are skipped, because a killed writer may leave a partial line.
        """
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            fresh = file.read(1 << 20)
        *lines, rest = (self.rest + fresh).split(b"\n")
        records = [record for record in map(_parse, lines) if record]
        # Updated last, so that a shortage of memory or disk loses no record.
        self.offset, self.rest = self.offset + len(fresh), rest
        return records


def _parse(line: bytes) -> Dict[str, Any]:
    try:
        record = untrusted_json.parse(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


class Growth:
    """A recorder of log size over time, which dates the lines of a log: lines of "seconds bytes" in a `.times` file."""

    @retry_shortages
    def __init__(self, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.times = log.with_suffix(".times")
        self.size = -1
        self.noted_at = 0.0
        self.record_size()  # records from here on are newer than the records of an earlier attempt

    def record_if_due(self) -> None:
        if time.monotonic() - self.noted_at >= NOTE_EVERY_S:
            self.record_size()

    def record_size(self) -> None:
        """Record the size, read before the time, so that a byte may be dated slightly late but never early."""
        self.noted_at = time.monotonic()
        try:
            size = self.log.stat().st_size
            if size != self.size:
                mode = "w" if size < self.size else "a"  # the log was rotated
                self.size = size
                with open(self.times, mode, encoding="ascii") as file:
                    file.write("%.3f %d\n" % (time.time(), size))
        except FileNotFoundError:  # the log is still missing
            return
        except OSError as error:  # the disk is full; further lines of the log have no dates
            say("could not record the size of %s: %s" % (self.log.name, error))


class Progress:
    def __init__(self, pod: PodFolder, job: Job, names: Iterable[str], redact: Redactor) -> None:
        self.path = pod.progress
        self.acknowledged = pod.acknowledged if job.beside else None
        self.waiting = pod.waiting if job.beside else None
        self.tracking = pod.tracking if job.trackers else None
        self.figures = UtilizationSampler(pod.root, job.devices, pod.log(GPUS))
        self.redact = redact
        self.steps = {name: _waiting(name) for name in names}
        agents = _agents_before(self.path, job.token) + 1
        self.document = {"schema": SCHEMA, "run": job.run, "token": job.token, "state": "starting", "step": ""}
        self.document.update(agents=agents, started_at=time.time())
        self.starting_s = awake_s()
        self.load = OtherLoad()
        self.written_at = self.began_s = 0.0
        self.timeline = timeline.Timeline(pod.log(timeline.NAME), job.token)
        self.timeline.add(agent="starting")
        self.write()

    def begin(self, name: str) -> None:
        """Start an attempt at a step."""
        step = self.steps[name]
        step.update(
            state="running",
            attempts=step["attempts"] + 1,
            record=None,
            result=None,
            ended_at=None,
            marks=[],
            total=None,
            unit=None,
            training=None,
        )
        step["started_at"] = step["started_at"] or time.time()
        self.began_s = awake_s()
        self.load = OtherLoad()
        self.document.update(state="running", step=name)
        self.timeline.add(step=name, state="running")
        self.write()

    def add_records(self, name: str, records: List[Dict[str, Any]]) -> None:
        """Record new records of the running step."""
        step = self.steps[name]
        for record in records:
            if record.get("kind") == "part":  # for the timeline, not for display
                self.timeline.add_part(name, record)
                continue
            step["record"] = record
            _mark(step, record)
            if record.get("kind") == "result":
                step["result"] = record
        self.refresh()

    def refresh(self) -> None:
        """Write the progress if at least WRITE_EVERY_S seconds have passed since the last write."""
        if time.monotonic() - self.written_at >= WRITE_EVERY_S:
            self.write()

    def end(self, name: str, state: str, result: Any = None) -> None:
        """End a done, reused or failed step; `result` is the result of a reused step."""
        self.figures.history.append_line()
        step = self.steps[name]
        step.update(state=state, ended_at=time.time(), result=step["result"] or result)
        if step["attempts"]:  # otherwise an earlier agent ran the step
            step.update(others_share=self.load.share(), awake_s=awake_s() - self.began_s)
        self.timeline.add(step=name, state=state)
        self.write()

    def close(self, state: str) -> None:
        """Close the progress at the end of the run; a running step is marked as failed."""
        for step in self.steps.values():
            if step["state"] == "running":
                step.update(state="failed", ended_at=time.time())
        self.document["state"] = state
        self.timeline.add(agent=state)
        self.write()

    def write(self) -> None:
        self.written_at = time.monotonic()
        self.timeline.add_sign_of_life()
        with tolerate_shortage(say, f"writing the progress of {self.document['step'] or 'the start'}"):
            now = time.time()
            for step in self.steps.values():
                if step["started_at"]:
                    step["elapsed_s"] = (step["ended_at"] or now) - step["started_at"]
            machine = self.figures.sample()
            # The agent's own words stay unmasked: a secret may equal a word such as `token` or `running`.
            steps = [
                {**step, **{key: self.redact(step[key]) for key in ("record", "result", "unit")}}
                for step in self.steps.values()
            ]
            said = {**self.document, "steps": steps, "machine": machine, "updated_at": now}
            said["awake_s"] = awake_s() - self.starting_s  # since the start, without sleep and jumps of the clock
            uploads = _uploads(self.waiting)
            uploads["problem"] = self.redact(uploads["problem"])
            if self.tracking:
                said["tracking"] = self.redact(_tracked(self.tracking))
            try_write_json(self.path, {**said, "in_store": _checkpoints(self.acknowledged), "uploads": uploads})


def _agents_before(path: Path, token: str) -> int:
    """Return the number of earlier agents of this pod with a progress file, or 0."""
    before = try_read_json(path)
    agents = before.get("agents", 1)
    return agents if before.get("token") == token and type(agents) is int else 0


def _mark(step: Dict[str, Any], record: Dict[str, Any]) -> None:
    """Append `[seconds since the start, share of the work]` to the marks of a step, about twenty marks in total.

    If the total changes, as in a training that a limit shortens, earlier shares become shares of the new total. A new
    unit, and the first training step, discard earlier marks; after that, only training steps are marked.
    """
    done, total, at = record.get("done"), record.get("total"), record.get("at")
    if done is None or total is None or at is None or not all(map(_is_number, (done, total, at))) or total <= 0:
        return
    is_training = _is_number(record.get("step"))
    if step["training"] and not is_training:
        return
    if step["unit"] != record.get("unit") or is_training and not step["training"]:
        step.update(marks=[], total=None, unit=record.get("unit"))
    if is_training:
        step["training"] = {"step": record["step"], "done": done, "total": total}
    if step["total"] not in (None, total):
        step["marks"] = [[at_s, min(1.0, round(part * step["total"] / total, 6))] for at_s, part in step["marks"]]
    step["total"] = total
    share, marks = min(1.0, max(0.0, done / total)), step["marks"]
    if not marks or share >= marks[-1][1] + MARK_EVERY or share == 1.0 > marks[-1][1]:
        marks.append([round(max(0.0, at - step["started_at"]), 3), round(share, 6)])


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _checkpoints(acknowledged: Optional[Path]) -> Dict[str, float]:
    """Return, for the newest `<folder>/step-<9 digits>` of each folder, the time of its verification in the store."""
    known = try_read_json(acknowledged) if acknowledged else {}
    newest: Dict[str, str] = {}
    for name in sorted(known):
        above, _, folder = name.partition("work/checkpoints/")
        if folder and not above:
            newest[folder.split("/")[0]] = folder
    return {folder: known["work/checkpoints/" + folder] for folder in newest.values()}


def _uploads(waiting: Optional[Path]) -> Dict[str, Any]:
    """Return the artifacts missing in the store, and the problem of the last upload attempt."""
    said = try_read_json(waiting) if waiting else {}
    return {"pending": said.get("names", []), "problem": said.get("problem", "")}


def _tracked(folder: Path) -> Dict[str, str]:
    """Return the link of each tracker to the run, with the tracker's last problem."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        said = try_read_json(path)
        link, problem = str(said.get("link", "")), str(said.get("problem", ""))
        found[path.stem] = f"{link} (not updated since: {problem})".lstrip() if problem else link
    return found


def _waiting(name: str) -> Dict[str, Any]:
    return {
        "name": name,
        "state": "waiting",
        "attempts": 0,
        "started_at": None,
        "ended_at": None,
        "elapsed_s": 0.0,
        "record": None,
        "result": None,
        "marks": [],
        "total": None,
        "unit": None,  # of the marks
        "training": None,  # step, done and total in the newest record of a training step
        "others_share": None,
        "awake_s": None,  # duration of the last attempt, without sleep of the machine and jumps of the clock
    }
