"""RunPod's GraphQL: queries and answers.

GraphQL ends early in 2027, and has the features missing in REST v2: the balance, and spot pods.
"""

from decimal import Decimal
from typing import Annotated, Any

from msgspec import Meta, Struct

MYSELF = "query { myself { id email clientBalance currentSpendPerHr spendLimit } }"
BID = """query ($id: String, $count: Int, $secure: Boolean) { gpuTypes(input: {id: $id}) {
  id lowestPrice(input: {gpuCount: $count, secureCloud: $secure}) { minimumBidPrice stockStatus } } }"""
TERMINATE = "mutation ($id: String!) { podTerminate(input: {podId: $id}) }"
SPOT = """mutation ($input: PodRentInterruptableInput!) {
  podRentInterruptable(input: $input) { id desiredStatus machineId } }"""
SPOT_PODS = """query { myself { id pods { id name podType desiredStatus costPerHr containerDiskInGb env createdAt
  runtime { ports { ip isIpPublic privatePort publicPort } } } } }"""
INTERRUPTABLE = "INTERRUPTABLE"  # type of a spot pod
SSH_PORT, SSH_USER = 22, "root"  # in the vendor's own images


class Complaint(Struct):
    message: str


class Myself(Struct):
    id: str
    email: str | None = None
    clientBalance: Decimal | None = None
    pods: list[Any] = []


class Deployed(Struct):
    id: Annotated[str, Meta(min_length=1)]
    costPerHr: Any = None


class Lowest(Struct):
    minimumBidPrice: Decimal | None = None
    stockStatus: str | None = None


class Bid(Struct):
    id: str
    lowestPrice: Lowest | None = None


class Data(Struct):
    myself: Myself | None = None
    gpuTypes: list[Bid] | None = None
    podRentInterruptable: Deployed | None = None


class Graph(Struct):
    data: Data | None = None
    errors: list[Complaint] | None = None


class Port(Struct):
    ip: str
    isIpPublic: bool
    privatePort: int
    publicPort: int


class Runtime(Struct):
    ports: list[Port] | None = None


class SpotPod(Struct):
    id: str
    name: str
    podType: str
    desiredStatus: str
    costPerHr: Decimal
    containerDiskInGb: int = 0
    env: list[Any] | None = None
    createdAt: Any = None
    runtime: Runtime | None = None

    @property
    def state(self) -> str:
        """Return the state in the terms of REST v2."""
        if self.desiredStatus in ("RUNNING", "RESTARTING", "CREATED"):
            return "RUNNING" if self.runtime else "STARTING"
        return {"PAUSED": "EXITED", "DEAD": "ERROR"}.get(self.desiredStatus, self.desiredStatus)

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of the container, sent as `NAME=value`."""
        pairs = [one.partition("=") for one in self.env or () if isinstance(one, str)]
        return {name: value for name, _, value in pairs}

    @property
    def ssh_endpoint(self) -> tuple[str, str, int] | None:
        """Return user, host and port for SSH; None without a public SSH port."""
        ports = (self.runtime and self.runtime.ports) or ()
        open_ = [one for one in ports if one.isIpPublic and one.privatePort == SSH_PORT]
        return (SSH_USER, open_[0].ip, open_[0].publicPort) if open_ else None
