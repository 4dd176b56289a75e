"""MLflow tracker: each run of ours is an MLflow run, found again by a tag.

The server is `MLFLOW_TRACKING_URI`; without a server, MLflow stores the run in a folder beside the figures. On a resume
the tracker asks the server for the last logged step, because each batch ends with the step that the batch reaches.
"""

import os
import time
from collections.abc import Sequence

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from trainer.tracking.tracker import LastSent, Line, TrackedRun, flat, numbers

EXPERIMENT = "slipway"
TAG = "slipway.run"
BATCH_METRICS = 900  # the server's limit is 1000 per request
BATCH_PARAMS = 90  # the server's limit is 100 per request
PARAM_LETTERS = 500
# MLflow's own tries take a quarter of an hour, and the sidecar tries again anyway.
TRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


class MlflowRun:
    def __init__(self, run: TrackedRun) -> None:
        for name, value in TRIES.items():
            os.environ.setdefault(name, value)
        uri = os.environ.get("MLFLOW_TRACKING_URI", "")
        here = run.folder / "mlruns"
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions require this setting
        self.client = MlflowClient(uri or here.as_uri())
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
        experiment = self.client.get_experiment_by_name(name)
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(name)
        found = self.client.search_runs([experiment_id], f"tags.`{TAG}` = '{run.run}'", max_results=1)
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
        else:
            self.id = self.client.create_run(experiment_id, tags={TAG: run.run}, run_name=run.run).info.run_id
            self._configure(run)
        self.last_sent: LastSent | None = self._read_last_sent(list(run.configs))
        self.link = f"{uri.rstrip('/')}/#/experiments/{experiment_id}/runs/{self.id}" if uri else f"offline, in {here}"

    def _configure(self, run: TrackedRun) -> None:
        whole = {f"{phase}.{name}": value for phase, one in run.configs.items() for name, value in flat(one).items()}
        params = [Param(name, str(value)[:PARAM_LETTERS]) for name, value in whole.items()]
        for at in range(0, len(params), BATCH_PARAMS):
            self.client.log_batch(self.id, params=params[at : at + BATCH_PARAMS])

    def _read_last_sent(self, phases: Sequence[str]) -> LastSent:
        data = self.client.get_run(self.id).data
        return LastSent(
            {phase: int(data.metrics.get(f"{phase}/step", 0)) for phase in phases},
            {phase: int(data.tags.get(f"slipway.samples.{phase}", 0)) for phase in phases},
        )

    def send_metrics(self, phase: str, lines: Sequence[Line]) -> None:
        batch: list[Metric] = []
        for line in lines:
            at = int(line.get("at", time.time()) * 1000)
            named = {**numbers(line), "step": float(line["step"])}  # last, to mark the progress of this batch
            more = [Metric(f"{phase}/{name}", value, at, line["step"]) for name, value in named.items()]
            if len(batch) + len(more) > BATCH_METRICS:
                self.client.log_batch(self.id, metrics=batch)
                batch = []
            batch += more
        self.client.log_batch(self.id, metrics=batch)

    def send_samples(self, phase: str, said: Sequence[Line]) -> None:
        step = said[0]["step"]
        text = "\n\n".join(f"{one['prompt']}\n{one['text']}" for one in said)
        self.client.log_text(self.id, text, f"samples/{phase}-{step:09}.txt")
        self.client.log_batch(self.id, tags=[RunTag(f"slipway.samples.{phase}", str(step))])

    def close(self) -> None:
        self.client.set_terminated(self.id)
