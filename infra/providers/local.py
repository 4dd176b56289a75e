"""The provider of this machine: a pod is a folder with local processes, free of charge.

A pod exists while the marker in the folder carries the pod's token. The folder has the name of the run and stays after
the end of the pod, so that the next pod of the run finds the checkpoints. A pod's id is `token@folder`, which fixes the
location: a damaged marker affects only one run, and a command of a second checkout finds the folder too. Earlier ids
were `token@run`, with a folder of this checkout.
"""

import getpass
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from infra.agent.job import Limits, PodFolder
from infra.agent.process import end_all
from infra.errors import NoOffer, SlipwayError
from infra.market.gpus import missing_devices
from infra.names import check_name
from infra.providers import Provider
from infra.records import Account, Offer, Pod, Request
from infra.settings import LOCAL, Settings
from infra.transport.protocol import ThisMachine
from store import local_files

CHECKOUT = Path(__file__).resolve().parents[2]
STOP_S = 300.0  # seconds for the agent to end the work, and for a concurrent start or stop to finish


@dataclass(frozen=True)
class Local(Provider):
    """Pods as folders under `pods`."""

    pods: Path

    name = LOCAL
    is_here, is_rented = True, False
    settle_s = 0.0
    pod_store = ""

    @staticmethod
    def from_settings(settings: Settings) -> "Local":
        """Return the provider for the folder in the settings."""
        return Local(Path(settings.pods))

    def account(self) -> Account:
        return Account(provider=self.name, owner=getpass.getuser())

    def offers(self, request: Request) -> list[Offer]:
        """Return this machine if the machine satisfies the request, else no offers."""
        gpus = _gpus()
        if request.gpu or request.num_gpus:
            from infra.machines.survey import chosen_gpus  # most requests are open

            if not any(chosen_gpus(request, name, len(gpus)) for name in {*gpus}):
                return []
        if missing_devices(request.devices, len(gpus)):
            return []
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        gpu = gpus[0] if gpus else ""
        return [
            Offer(
                provider=self.name,
                offer_id="this-machine",
                region="here",
                gpu=gpu,
                num_gpus=len(gpus),
                cpus=cpus,
                memory_bytes=memory_bytes,
            )
        ]

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Mark the folder of the run with `token`. Raise NoOffer if the marker of an earlier pod is still there."""
        folder = self.pods.absolute() / check_name(request.run)
        pod = PodFolder(folder)
        pod.state.mkdir(parents=True, exist_ok=True)
        try:  # only one of two competing processes gets the folder
            local_files.create(pod.marker, (json.dumps({"token": token, "run": request.run}) + "\n").encode())
        except FileExistsError:
            raise NoOffer(
                f"local: {folder} is still the pod of {_token(folder)}; run: inv down {request.run}"
            ) from None
        return _pod(folder, token)

    def find(self, pod: str) -> Pod | None:
        """Return the pod, by id from the folder, by token alone from all folders.

        Raise SlipwayError if a damaged marker may belong to the pod.
        """
        token, _, where = pod.partition("@")
        if os.path.isabs(where):
            folders = [Path(where)]
        else:
            folders = [self.pods.absolute() / check_name(where)] if where else _folders(self.pods)
        damaged = None
        for folder in folders:
            try:
                if _token(folder) == token:
                    return _pod(folder, token)
            except SlipwayError as error:
                damaged = error
        if damaged:
            raise damaged
        return None

    def list(self) -> "list[Pod]":
        """Return all pods. A damaged marker counts as a pod with the token ""."""
        pods = []
        for folder in _folders(self.pods):
            try:
                token = _token(folder)
            except SlipwayError:
                pods.append(_pod(folder, ""))
            else:
                pods += [_pod(folder, token)] if token else []
        return pods

    def delete(self, pod_id: str) -> None:
        """End every process of the pod, then remove the marker and the secrets; keep the results."""
        found = self.find(pod_id)
        if found is None:
            if end_all(pod_id.partition("@")[0], grace_s=5.0):
                raise SlipwayError(
                    f"local: processes of {pod_id} still run without the pod folder, and cannot be ended"
                )
            return
        pod = PodFolder(Path(found.address))
        if pod.job.exists():  # otherwise no agent was ever started here
            words = [sys.executable, "-m", "infra.agent", "stop", found.address]
            done = ThisMachine().run(words, timeout_s=STOP_S, env={"PYTHONPATH": str(CHECKOUT)})
            if done.exited != 0:
                said = (done.stderr or done.stdout).strip()
                raise SlipwayError(f"local: ending {found.run} in {found.address}: exit code {done.exited}: {said}")
        pod.secrets.unlink(missing_ok=True)
        pod.marker.unlink(missing_ok=True)

    def reach(self, pod: Pod) -> ThisMachine:
        return ThisMachine()


def _folders(pods: Path) -> "list[Path]":
    return sorted(pods.absolute().iterdir()) if pods.is_dir() else []


def _token(folder: Path) -> str:
    """Return the token of the pod in `folder`; "" without a pod. Raise SlipwayError for a damaged marker."""
    marker = PodFolder(folder).marker
    try:
        return str(json.loads(marker.read_text())["token"])
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SlipwayError(
            f"local: {marker} is damaged ({error}); remove the file, then run: inv down {folder.name}"
        ) from None


def _pod(folder: Path, token: str) -> Pod:
    return Pod(provider=Local.name, pod_id=f"{token}@{folder}", token=token, run=folder.name, address=str(folder))


def _gpus() -> "list[str]":
    """Return the names of this machine's GPUs; empty without a working nvidia-smi."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []
