"""The masking of a recording: names of fields stay, and of their values only what a client reads and nobody owns.

In: the tokens and ids of a drill, then bodies and words. Out: the same with stand-ins, the same one for the same thing,
so that requests and answers still fit together. What is not known to be harmless is struck out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

STRUCK = "masked"
HOST, PORT, USER = "203.0.113.1", 22022, "user"  # an address that documents may use
FIXED: Mapping[str, Any] = {"host": HOST, "ip": HOST, "port": PORT, "ssh_port": PORT, "username": USER,
                            "ssh_user": USER}  # fmt: skip
# Fields whose values the clients read, or that tell what a vendor means, and that say nothing of an account.
READ = frozenset(
    "cloud region shade_instance_type hourly_price num_gpus gpu_type memory_in_gb storage_in_gb vcpus interconnect "
    "vram_per_gpu_in_gb nvlink available display_name status status_details cost_estimate created_at active_at "
    "deleted_at date_threshold spend_threshold shade_cloud deployment_type "
    "secure community maxCount memory availability cost costPerHr desiredStatus createdAt startedAt totalAmount "
    "gpuTypeId gpuCount cloudType containerDiskInGb volumeInGb ports startSsh supportPublicIp minCudaVersion "
    "dataCenterId terminateAfter bidPerGpu imageName image query count disk minimumBidPrice stockStatus "
    "machine_name gpu_count available_gpu_count price_per_gpu min_gpu_count_for_rental tier country_code region_name "
    "effective_upload_speed_mbps effective_download_speed_mbps max_cuda_version gpu_power_limited capacity total free "
    "frequent_rent_failures last_verified_at docker_image docker_image_tag driver success price phase "
    "removal_scheduled_at billed_seconds termination_hours enable_backups initial_port_count product include "
    "bucketSize lastN error error_code code message detail title errors hint reason".split()
)
# Names that our clients send and vendors give back, which identify a machine of the drill.
OURS = re.compile(r"(?:slipway-(?:token|run)=)?(?:sw1-0{8}-[0-9]{16}|machine-[0-9]+|id-[0-9]+|drill-[a-z0-9-]+)")
_SSH = re.compile(r"ssh \S+@\S+?(?: -p \d{1,5})?")
_KEY = re.compile(r"ssh-ed25519 \S+(?: \S+)?")
_STRUCK = (
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), HOST),
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), STRUCK),
    (re.compile(r"\$\d[\d.,]*"), "$0"),
    (re.compile(r"(?<![\w.])/[\w.~-]+/[^\s:;,]*"), "/..."),  # a path of this machine
)
PLAIN_ID = re.compile(r"[A-Z]{2}-[A-Z]{2,}-\d+|.* .*")  # a data center, or a kind of GPU
GPU_NAME = re.compile(r"(?:NVIDIA|AMD) [A-Za-z0-9 .-]{1,80}")
VARIABLE = re.compile(r"PUBLIC_KEY|SLIPWAY_[A-Z]+")
SHORTEST = 5


class RecordingMask:
    """The stand-ins of one recording."""

    def __init__(self, tokens: Sequence[str], pod_ids: Sequence[str]) -> None:
        self._known = {token: f"sw1-00000000-{number:016d}" for number, token in enumerate(tokens, 1)}
        self._known |= {one: f"machine-{number}" for number, one in enumerate(pod_ids, 1) if one}

    @property
    def secrets(self) -> Iterable[str]:
        """Return everything that has a stand-in."""
        return self._known.keys()

    def learn(self, body: Any) -> None:
        """Replace every id in a body by a stand-in."""
        if isinstance(body, list):
            for one in body:
                self.learn(one)
        elif isinstance(body, dict):
            for name, value in body.items():
                is_id = name == "id" or name.endswith(("_id", "Id"))
                if is_id and isinstance(value, str) and len(value) >= SHORTEST and not PLAIN_ID.fullmatch(value):
                    self._known.setdefault(value, f"id-{len(self._known)}")
                self.learn(value)

    def stand_in(self, text: str) -> str:
        """Return a text with every known thing replaced, the longest first: one may be a part of another."""
        for one in sorted(self._known, key=len, reverse=True):
            text = text.replace(one, self._known[one])
        return text

    def words(self, text: str) -> str:
        """Return words of ours or of the vendor's without what is known, addresses, amounts and paths."""
        text = self.stand_in(text)
        for pattern, other in _STRUCK:
            text = pattern.sub(other, text)
        return text

    def body(self, body: Any, name: str = "") -> Any:
        """Return a request or an answer. `name`: of the field that holds it."""
        if isinstance(body, dict):
            return {self.stand_in(key): self.body(value, key) for key, value in body.items()}
        if isinstance(body, list):
            return [self.body(one, name) for one in body]
        if body is None or body == "" or isinstance(body, bool):
            return body
        if name in FIXED and not isinstance(body, dict):
            return FIXED[name]
        if isinstance(body, (int, float)):
            return body if name in READ else 0
        if _SSH.fullmatch(body):
            return f"ssh {USER}@{HOST} -p {PORT}"
        text = self.stand_in(body)
        is_plain = (name == "id" and PLAIN_ID.fullmatch(text)) or (name == "key" and VARIABLE.fullmatch(text))
        is_plain = is_plain or (name == "name" and GPU_NAME.fullmatch(text))
        if OURS.fullmatch(text) or is_plain:
            return text
        if _KEY.fullmatch(body):
            return "ssh-ed25519 MASKED"
        return self.words(text) if name in READ else STRUCK
