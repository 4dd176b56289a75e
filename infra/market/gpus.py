"""Table of GPUs: a canonical name per GPU, and the identifiers of each vendor.

Names go from general to specific: `A100-80GB-SXM` is an A100, an A100-80GB, and an A100-SXM. A MIG slice is a different
GPU than the whole GPU: `RTXPRO6000-MIG-1G.24GB` is an RTXPRO6000-MIG, but no RTXPRO6000. The vendors' identifiers are
from catalogs of November 2026, RunPod's from its table of GPU types of 2026-08-20. A GPU outside of the table keeps the
vendor's name.
"""

import difflib
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
    shadeform: tuple[str, ...] = ()  # the vendor's `gpu_type`, exact only with memory and interconnect


# Peak of dense bfloat16 products in TFLOP/s, from the makers' data sheets; basis of forecasts. V100 does not support
# bfloat16.
TFLOPS = {"A100": 312, "H100-PCIe": 756, "H100-NVL": 835, "H100": 989, "H200": 989, "B200": 2250, "B300": 2250,
          "L40S": 362, "L40": 181, "L4": 121, "A40": 149.7, "A30": 165, "A6000": 155, "A5000": 111, "A4500": 95,
          "A4000": 77, "RTX6000Ada": 364, "RTX5000Ada": 261, "RTX4000Ada": 107, "RTX3080": 60, "RTX3090": 71,
          "RTX3090Ti": 80, "RTX4080": 97, "RTX4090": 165, "RTX5080": 113, "RTX5090": 210, "RTXPRO6000": 500,
          "MI300X": 1307}  # fmt: skip
# A MIG profile such as `2g.48gb` names the number of compute slices and the memory. NVIDIA divides the GPUs in IN_FOUR
# into four slices, and all other GPUs with MIG into seven. Types of Slurm, such as `a100_3g.20gb`, lack the word MIG.
IN_FOUR = ("RTXPRO6000", "A30")
PROFILE = r"([1-7])g[. _-]?([0-9]+)gb(?:[+.-][a-z]+)*"
SLICE = re.compile(rf"(?!MIG)(.+?)(?:[ _-]*MIG[ ._-]*|[ ._-]){PROFILE}", re.IGNORECASE)
_PROFILE = re.compile(rf"(?:.*[^a-z0-9])?{PROFILE}", re.IGNORECASE)

_SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
_PRO = (_SERVER, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition")


def _alike(name: str, memory_gb: int, theirs: str, *shadeform: str) -> Gpu:
    """Return a GPU listed by RunPod and Lium under the maker's name."""
    return Gpu(name, memory_gb, (theirs,), (theirs,), shadeform)


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
    _alike("RTXPRO6000-MaxQ", 96, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
    _alike("RTXPRO6000-MIG-1G.24GB", 24, f"{_SERVER} MIG 1g.24gb"),
    _alike("RTXPRO6000-MIG-2G.48GB", 48, f"{_SERVER} MIG 2g.48gb"),
    _alike("RTXPRO4500", 32, "NVIDIA RTX PRO 4500 Blackwell"),
    _alike("A30", 24, "NVIDIA A30"),
    _alike("A40", 48, "NVIDIA A40"),
    _alike("L4", 24, "NVIDIA L4"),
    _alike("A2000", 6, "NVIDIA RTX A2000"),
    _alike("A4000", 16, "NVIDIA RTX A4000"),
    _alike("A4500", 20, "NVIDIA RTX A4500"),
    _alike("A5000", 24, "NVIDIA RTX A5000"),
    _alike("RTX2000Ada", 16, "NVIDIA RTX 2000 Ada Generation"),
    _alike("RTX4000Ada", 20, "NVIDIA RTX 4000 Ada Generation"),
    _alike("RTX4000AdaSFF", 20, "NVIDIA RTX 4000 SFF Ada Generation"),
    _alike("RTX5000Ada", 32, "NVIDIA RTX 5000 Ada Generation"),
    _alike("RTX6000Ada", 48, "NVIDIA RTX 6000 Ada Generation"),
    _alike("RTX3070", 8, "NVIDIA GeForce RTX 3070"),
    _alike("RTX3080", 10, "NVIDIA GeForce RTX 3080"),
    _alike("RTX3080Ti", 12, "NVIDIA GeForce RTX 3080 Ti"),
    _alike("RTX3090Ti", 24, "NVIDIA GeForce RTX 3090 Ti"),
    _alike("RTX4070Ti", 12, "NVIDIA GeForce RTX 4070 Ti"),
    _alike("RTX4080", 16, "NVIDIA GeForce RTX 4080"),
    _alike("RTX4080SUPER", 16, "NVIDIA GeForce RTX 4080 SUPER"),
    _alike("RTX5080", 16, "NVIDIA GeForce RTX 5080"),
    _alike("V100-16GB-PCIe", 16, "Tesla V100-PCIE-16GB"),
    _alike("V100-16GB-SXM", 16, "Tesla V100-SXM2-16GB"),
    _alike("V100-32GB-SXM", 32, "Tesla V100-SXM2-32GB"),
    _alike("MI300X", 192, "AMD Instinct MI300X OAM"),
)


def name(theirs: str, memory_gb: int = 0, interconnect: str = "") -> str:
    """Return the canonical name of a vendor's GPU; memory and interconnect resolve ambiguous vendor names."""
    kinds = ("SXM",) if interconnect.lower().startswith("sxm") else ("PCIe", "NVL")
    found = [gpu for gpu in GPUS if theirs.lower() in (one.lower() for one in gpu.shadeform)]
    if not found:
        return _plain(theirs)
    near = min(abs(gpu.memory_gb - memory_gb) for gpu in found) if memory_gb else 0
    alike = [gpu.name for gpu in found if not memory_gb or abs(gpu.memory_gb - memory_gb) == near]
    return next((one for one in alike if one.endswith(kinds)), alike[0])


def canonical_name(asked: str) -> str:
    """Return the canonical name for `asked`, or `asked` without the maker's prefix if not in the table."""
    return _plain(asked)


def tflops(ours: str) -> float | None:
    """Return the peak TFLOP/s of a GPU, or the proportional share of a slice; None outside of the table."""
    part = SLICE.fullmatch(ours)
    whole = part[1] if part else ours
    found = [kind for kind in TFLOPS if is_asked(kind, whole)]
    if not found:
        return None
    peak = TFLOPS[max(found, key=len)]
    if part is None:
        return peak
    return peak * int(part[2]) / (4 if any(is_asked(kind, whole) for kind in IN_FOUR) else 7)


def is_for_training(ours: str) -> bool:
    """Return whether the planner may choose this GPU for training without an explicit request.

    A plan must be able to run and to be priced. PyTorch's CUDA build runs on NVIDIA GPUs only, and a GPU without a
    known bfloat16 speed may not support bfloat16.
    """
    amd = any(gpu.name == ours for gpu in GPUS if any(one.startswith("AMD") for one in (*gpu.runpod, *gpu.lium)))
    return not amd and tflops(ours) is not None


def memory_bytes(ours: str) -> int:
    """Return the memory in bytes of the smallest matching GPU in the table; 0 without a match."""
    return min((gpu.memory_gb for gpu in GPUS if is_asked(ours, gpu.name)), default=0) * 10**9


def is_known(ours: str) -> bool:
    """Return whether the table contains this GPU, or the whole GPU of this slice."""
    part = SLICE.fullmatch(ours)
    return any(gpu.name == (part[1] if part else ours) for gpu in GPUS)


def is_slice(name: str) -> bool:
    """Return whether the name denotes a MIG slice of a GPU."""
    return "mig" in _words(_plain(name)) or _PROFILE.fullmatch(name) is not None


def ids(vendor: str, asked: str) -> tuple[str, ...]:
    """Return the vendor's identifiers of all GPUs matching `asked`; () without a match."""
    found = [one for gpu in GPUS if is_asked(asked, gpu.name) for one in getattr(gpu, vendor)]
    return tuple(dict.fromkeys(found))


@functools.lru_cache(maxsize=4096)  # a million offers have few kinds
def is_asked(asked: str, ours: str) -> bool:
    """Return whether the GPU `ours` matches the requested name `asked`.

    `A100` and `a100-sxm` match A100-80GB-SXM, `A10` does not. A whole GPU never matches a slice, nor the reverse.
    """
    wanted, have = _words(_plain(asked)), _words(ours)
    if not wanted or not have or ("mig" in wanted) != ("mig" in have):
        return False
    if wanted[0] == have[0] and set(wanted) <= set(have):
        return True
    return "".join(wanted) in ("".join(have[:count]) for count in range(1, len(have) + 1))


def read_set(text: str, count: int = 0) -> tuple[tuple[str, int], ...]:
    """Parse `A100:1,H100:8` into (name, count) pairs; `count` is the default, 0 = any. Raises UsageError."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        gpu, colon, number = word.partition(":")
        if colon and not (re.fullmatch("[0-9]{1,4}", number) and int(number)):
            raise UsageError(f"--gpu {word}: expected a kind and a number, such as H100:8")
        found.append((gpu.strip(), int(number) if colon else count))
    if text and not all(gpu for gpu, _ in found):
        raise UsageError(f"--gpu {text}: expected kinds and numbers, such as A100:1,H100:1")
    return tuple(found)


def typos(text: str) -> dict[str, str]:
    """Return the names in `A100:1,H1000:8` that match no GPU of the table, each with the nearest name of the table."""
    names = {one.lower(): one for one in (*(gpu.name for gpu in GPUS), *TFLOPS)}
    asked = [gpu for gpu, _ in read_set(text) if not any(is_asked(gpu, one.name) for one in GPUS)]
    near = {gpu: difflib.get_close_matches(gpu.lower(), names, 1, 0.7) for gpu in asked if not is_slice(gpu)}
    return {gpu: names[found[0]] for gpu, found in near.items() if found}


def _plain(theirs: str) -> str:
    """Return the canonical name of a maker's name; outside of the table, the name without the maker's prefix."""
    said = _bare(theirs)
    if part := SLICE.fullmatch(said):
        return f"{_plain(part[1])}-MIG-{part[2]}G.{part[3]}GB"
    return next((gpu.name for gpu in GPUS if said.lower() in _makers_names(gpu)), said)


@functools.cache
def _makers_names(gpu: Gpu) -> frozenset[str]:
    return frozenset(_bare(one).lower() for one in (*gpu.runpod, *gpu.lium))


def _bare(theirs: str) -> str:
    words = " ".join(theirs.split())
    return re.sub(r"^((nvidia|amd|geforce|tesla|instinct) )+", "", words, flags=re.IGNORECASE)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def missing_devices(devices: str, num_gpus: int) -> str:
    """Return which of the comma-separated GPU indices a machine lacks, as text; "" = none."""
    missing = [one for one in devices.split(",") if one and int(one) >= num_gpus]
    return f"the machine has no device {', '.join(missing)}: {num_gpus or 'no'} GPUs are installed" if missing else ""
