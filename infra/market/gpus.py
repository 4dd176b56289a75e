"""The table of GPUs: one name for each, and the names of each vendor.

A name goes from the general to the special: `A100-80GB-SXM` is an A100, an A100-80GB, and an A100-SXM.
The vendors' identifiers are those of their catalogs in November 2026; one that is not in the table keeps its own name.
"""

import functools
import re
from dataclasses import dataclass

from infra.errors import UsageError


@dataclass(frozen=True)
class Gpu:
    name: str
    memory_gb: int
    runpod: tuple[str, ...] = ()
    lium: tuple[str, ...] = ()
    shadeform: tuple[str, ...] = ()  # the vendor's `gpu_type`, which memory and interconnect make exact


# Peak of dense bfloat16 products, as NVIDIA's data sheets say: what forecasts stand on.
TFLOPS = {"A100": 312, "H100-PCIe": 756, "H100-NVL": 835, "H100": 989, "H200": 989, "B200": 2250, "B300": 2250,
          "L40S": 362, "L40": 181, "A6000": 155, "RTX3090": 71, "RTX4090": 165, "RTX5090": 210,
          "RTXPRO6000": 500}  # fmt: skip

_PRO = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition")


def _alike(name: str, memory_gb: int, nvidia: str, shadeform: str) -> Gpu:
    """Return a GPU that RunPod and Lium call by NVIDIA's own name."""
    return Gpu(name, memory_gb, (nvidia,), (nvidia,), (shadeform,))


GPUS = (
    Gpu("A100-40GB-PCIe", 40, (), ("NVIDIA A100-PCIE-40GB",), ("A100",)),
    Gpu("A100-40GB-SXM", 40, (), (), ("A100",)),
    _alike("A100-80GB-PCIe", 80, "NVIDIA A100 80GB PCIe", "A100_80G"),
    _alike("A100-80GB-SXM", 80, "NVIDIA A100-SXM4-80GB", "A100_80G"),
    _alike("H100-PCIe", 80, "NVIDIA H100 PCIe", "H100"),
    _alike("H100-SXM", 80, "NVIDIA H100 80GB HBM3", "H100"),
    _alike("H100-NVL", 94, "NVIDIA H100 NVL", "H100"),
    _alike("H200-SXM", 141, "NVIDIA H200", "H200"),
    Gpu("H200-NVL", 141, ("NVIDIA H200 NVL",), (), ("H200",)),
    _alike("B200", 180, "NVIDIA B200", "B200"),
    _alike("B300", 288, "NVIDIA B300 SXM6 AC", "B300"),
    _alike("L40S", 48, "NVIDIA L40S", "L40S"),
    _alike("L40", 48, "NVIDIA L40", "L40"),
    _alike("A6000", 48, "NVIDIA RTX A6000", "A6000"),
    _alike("RTX3090", 24, "NVIDIA GeForce RTX 3090", "RTX3090"),
    _alike("RTX4090", 24, "NVIDIA GeForce RTX 4090", "RTX4090"),
    _alike("RTX5090", 32, "NVIDIA GeForce RTX 5090", "RTX5090"),
    Gpu("RTXPRO6000", 96, _PRO, _PRO, ("RTXPro6000",)),
)


def name(theirs: str, memory_gb: int = 0, interconnect: str = "") -> str:
    """Return our name of a vendor's GPU; memory and interconnect decide where the vendor's own word leaves it open."""
    kinds = ("SXM",) if interconnect.lower().startswith("sxm") else ("PCIe", "NVL")
    found = [gpu for gpu in GPUS if theirs.lower() in (one.lower() for one in gpu.shadeform)]
    if not found:
        return _plain(theirs)
    near = min(abs(gpu.memory_gb - memory_gb) for gpu in found) if memory_gb else 0
    alike = [gpu.name for gpu in found if not memory_gb or abs(gpu.memory_gb - memory_gb) == near]
    return next((one for one in alike if one.endswith(kinds)), alike[0])


def meant(asked: str) -> str:
    """Return the name in the table that `asked` means, if it means one, else as it is."""
    return _plain(asked)


def tflops(ours: str) -> float | None:
    """Return the peak TFLOP/s of one GPU of that name; None when it is not in the table."""
    found = [kind for kind in TFLOPS if is_asked(kind, ours)]
    return TFLOPS[max(found, key=len)] if found else None


def ids(vendor: str, asked: str) -> tuple[str, ...]:
    """Return that vendor's names of the GPUs that are meant by `asked`; () when the table knows of none."""
    found = [one for gpu in GPUS if is_asked(asked, gpu.name) for one in getattr(gpu, vendor)]
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)  # most of a million offers are of a kind that others are of too
def is_asked(asked: str, ours: str) -> bool:
    """Return whether a GPU called `ours` is meant by `asked`.

    `A100` and `a100-sxm` mean an A100-80GB-SXM, `A10` does not.
    """
    wanted, have = _words(_plain(asked)), _words(ours)
    if not wanted or not have:
        return False
    if wanted[0] == have[0] and set(wanted) <= set(have):
        return True
    return "".join(wanted) in ("".join(have[:count]) for count in range(1, len(have) + 1))


def read_set(text: str, count: int = 0) -> tuple[tuple[str, int], ...]:
    """Return `A100:1,H100:8` as (name, count); `count` where none is written, 0 = any number. Raises UsageError."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        gpu, colon, number = word.partition(":")
        if colon and not (re.fullmatch("[0-9]{1,4}", number) and int(number)):
            raise UsageError(f"--gpu {word}: expected a kind and a number, such as H100:8")
        found.append((gpu.strip(), int(number) if colon else count))
    if text and not all(gpu for gpu, _ in found):
        raise UsageError(f"--gpu {text}: expected kinds and numbers, such as A100:1,H100:1")
    return tuple(found)


def _plain(nvidia: str) -> str:
    """Return our name of NVIDIA's own name; without the words that say nothing when it is not in the table."""
    said = _bare(nvidia)
    found = [gpu.name for gpu in GPUS if said.lower() in (_bare(one).lower() for one in (*gpu.runpod, *gpu.lium))]
    return found[0] if found else said


def _bare(nvidia: str) -> str:
    return re.sub(r"^((nvidia|amd|geforce) )+", "", " ".join(nvidia.split()), flags=re.IGNORECASE)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
