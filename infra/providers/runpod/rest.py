"""RunPod's REST v2: answers, and the meaning of refusals.

Source: the vendor's API document of 2026-08-20, and the vendor's page of `POST /v2/pods` of October 2026.
"""

from dataclasses import replace
from decimal import Decimal
from typing import Annotated, Any

from msgspec import Meta, Struct

from infra.providers.refusals import RefusalKind, RefusalTable, Sentence

STATES = {
    "PROVISIONING": "booting",
    "STARTING": "booting",
    "RUNNING": "running",
    "EXITED": "stopped",
    "ERROR": "failed",
}
GONE = ("TERMINATED",)
REFUSALS = RefusalTable(
    vendor="runpod",
    billing_url="https://console.runpod.io/user/billing",
    sentences=(
        Sentence("no longer any instances available", RefusalKind.NO_STOCK, "mlabonne/llm-autoeval #3; SkyPilot"),
        Sentence("does not have the resources", RefusalKind.NO_STOCK, "bellhop-py, errors.py"),
        Sentence("enough disk space", RefusalKind.NO_STOCK, "SkyPilot, its list of RunPod's capacity errors"),
        Sentence("not enough free gpus", RefusalKind.NO_STOCK, "SkyPilot, as above"),
        # Capacity errors mention the balance as well, so only 402 is a verdict on money.
        Sentence("balance", RefusalKind.NO_STOCK, "opbdh 1.10.1, its note on capacity errors"),
        Sentence("credits", RefusalKind.NO_STOCK, "opbdh 1.10.1, as above"),
        Sentence("spend limit", RefusalKind.NO_STOCK, "the vendor's account rules: a cheaper offer may do"),
        Sentence("is not defined by type", RefusalKind.BAD_REQUEST, "GraphQL's validation, which precedes execution"),
        Sentence("cannot query field", RefusalKind.BAD_REQUEST, "GraphQL's validation, as above"),
        Sentence("got invalid value", RefusalKind.BAD_REQUEST, "GraphQL's validation, as above"),
        Sentence("unknown argument", RefusalKind.BAD_REQUEST, "GraphQL's validation, as above"),
    ),
    # Status 400 stands for out of stock and for a broken rule, and a key may be limited to some kinds of GPU.
    statuses={
        400: RefusalKind.NO_STOCK,
        403: RefusalKind.NO_STOCK,
        404: RefusalKind.BAD_REQUEST,
        410: RefusalKind.BAD_REQUEST,
        422: RefusalKind.BAD_REQUEST,
    },
)
# GraphQL validates a query before execution, and answers 400 to an invalid query.
GRAPH_REFUSALS = replace(REFUSALS, statuses={**REFUSALS.statuses, 400: RefusalKind.BAD_REQUEST})


class Price(Struct):
    secure: Decimal = Decimal(0)
    community: Decimal = Decimal(0)


class MaxCount(Struct):
    secure: int = 0
    community: int = 0


class DataCenter(Struct):
    id: str
    availability: str = "NONE"


class GpuType(Struct):
    id: str
    price: Price
    maxCount: MaxCount
    memory: int = 0
    availability: str = "NONE"
    dataCenters: list[DataCenter] = []


class GpuTypes(Struct):
    gpus: list[Any]


class Endpoint(Struct):
    host: str
    port: int
    username: str


class SshEndpoints(Struct):
    direct: Endpoint | None = None


class PodRow(Struct):
    id: str
    name: str
    status: str
    cost: Decimal
    disk: int = 0  # GB
    env: dict[str, Any] | None = None
    ssh: SshEndpoints | None = None
    createdAt: Any = None


class PodRows(Struct):
    pods: list[Any]
    nextCursor: str | None = None


class Volume(Struct):
    id: str
    dataCenter: str
    size: int = 0  # GB


class CreatedPod(Struct):
    id: Annotated[str, Meta(min_length=1)]
    cost: Any = None


class BillRow(Struct):
    podId: str | None = None
    totalAmount: Decimal | None = None


class Bill(Struct):
    records: list[BillRow]
