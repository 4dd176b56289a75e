"""A stand-in for RunPod's two APIs, with rows and a client, for tests."""

import base64
import re
from pathlib import Path

import pytest

from infra.agent.job import Limits
from infra.providers.json_api import JsonApi
from infra.providers.runpod import RunPod
from infra.records import Request
from tests.infra.market.stand import Answer, Stand

DOCUMENT = Path(__file__).parent / "runpod.openapi.json"
KEY = ("Authorization", "Bearer rp-secret")
H100 = "NVIDIA H100 80GB HBM3"
REQUEST = Request(run="brave-otter-3", provider="runpod", gpu="H100", num_gpus=8)
LIMITS = Limits(spend_micro_usd=150_000_000, micro_usd_per_hour=21_520_000)
GPU = {
    "id": H100, "name": "H100 SXM", "pool": "ADA_80_PRO", "manufacturer": "NVIDIA", "memory": 80, "secure": True,
    "community": True, "price": {"secure": 2.69, "community": 1.99, "serverless": 4.18},
    "maxCount": {"secure": 8, "community": 2}, "availability": "LOW",
    "dataCenters": [{"id": "US-KS-2", "name": "US Kansas 2", "availability": "LOW"},
                    {"id": "EU-RO-1", "name": "Romania", "availability": "HIGH"},
                    {"id": "CA-MTL-1", "name": "Montreal", "availability": "NONE"}],
    "cudaVersions": [{"version": "13.0", "available": True}],
}  # fmt: skip
DISK_RATE = 2740  # micro-USD per hour of the smallest disk: 20 GB at 0.10 USD per GB and month of 730 hours
CAPACITY = "There are no longer any instances available with the requested specifications."


def problem(status, detail, *errors):
    return Answer(
        status,
        {"title": "?", "status": status, "detail": detail, "errors": list(errors)},
        {"Content-Type": "application/problem+json"},
    )


def row(token, **changes):
    return {
        "id": "7h9k2m4n6p",
        "name": token,
        "image": "runpod/pytorch",
        "args": "",
        "disk": 100,
        "ports": ["22/tcp"],
        "env": {"SLIPWAY_POD": token, "SLIPWAY_RUN": "brave-otter-3"},
        "registry": None,
        "status": "PROVISIONING",
        "actions": ["stop", "terminate"],
        "mounts": {},
        "gpu": {"id": H100, "count": 8},
        "cloud": "SECURE",
        "dataCenterId": "US-KS-2",
        "cudaVersion": "13.0",
        "ssh": {"proxy": None, "direct": None},
        "template": None,
        "cost": 21.52,
        "locked": False,
        "globalNetworking": {"enabled": False},
        "runtime": {},
        "createdAt": "2026-11-20T12:00:00Z",
        "startedAt": None,
        **changes,
    }


DIRECT = {"proxy": {"host": "ssh.runpod.io", "port": 22, "username": "7h9k-64411eb2", "command": "ssh"},
          "direct": {"host": "195.26.233.3", "port": 34446, "username": "root", "command": "ssh"}}  # fmt: skip


@pytest.fixture
def stand():
    with Stand(KEY, paths=["/graphql"], document=DOCUMENT) as stand:
        stand.on("GET /v2/catalog/gpus", Answer(200, {"gpus": [GPU]}))
        stand.on("POST /graphql", graph(myself={"id": "u"}))  # no pod was rented as spot
        yield stand
    assert stand.wrong == []


@pytest.fixture
def runpod(stand, keys):
    return RunPod(JsonApi("runpod", stand.url, dict([KEY]), read_s=30.0, sleep=lambda _: None), keys, "13.0")


@pytest.fixture
def offer(runpod):
    return runpod.offers(REQUEST)[0]


def graph(**data):
    return Answer(200, {"data": data})


def started(args):
    """Return the script in a start command; the script needs no quoting."""
    return base64.b64decode(re.search(r"echo (\S+) \| base64 -d", args)[1]).decode()
