"""One name for each GPU, at every vendor."""

import re
from pathlib import Path

import pytest

from infra.errors import UsageError
from infra.machines.survey import HostHardware, chosen_gpus, request_mismatch, same_gpu
from infra.market import gpus
from infra.providers import local
from infra.providers.local import Local
from infra.records import Request

VENDORS = Path(__file__).parents[2] / "vendors"
SERVER = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
RUNPOD = """
MI300X A100-80GB-PCIe A100-80GB-SXM A30 A40 B200 B300 RTX3070 RTX3080 RTX3080Ti RTX3090 RTX3090Ti RTX4070Ti RTX4080
RTX4080SUPER RTX4090 RTX5080 RTX5090 H100-SXM H100-NVL H100-PCIe H200-SXM H200-NVL L4 L40 L40S RTX2000Ada RTX4000Ada
RTX4000AdaSFF RTX5000Ada RTX6000Ada A2000 A4000 A4500 A5000 A6000 RTXPRO4500 RTXPRO6000-MaxQ RTXPRO6000-MIG-1G.24GB
RTXPRO6000-MIG-2G.48GB RTXPRO6000 RTXPRO6000 V100-16GB-PCIe V100-16GB-SXM V100-32GB-SXM
""".split()


def table():
    """Return id, display name and GB of each GPU in RunPod's own table."""
    text = (VENDORS / "runpod-gpu-types.mdx").read_text()
    return [(one[0], one[1], int(one[2])) for one in re.findall(r"^\| (.+?) +\| (.+?) +\| +([0-9]+) \|$", text, re.M)]


def test_every_gpu_of_runpods_table_has_a_unique_name():
    assert [gpus.name(theirs) for theirs, _, _ in table()] == RUNPOD and len(RUNPOD) == 45
    sizes = {one.name: one.memory_gb for one in gpus.GPUS}
    for ours, (theirs, _, memory_gb) in zip(RUNPOD, table(), strict=True):
        assert theirs in gpus.ids("runpod", ours) and gpus.is_asked(ours, ours) and gpus.is_asked(theirs, ours)
        assert abs(sizes[ours] - memory_gb) <= 2, theirs
        others = {one for one in RUNPOD if gpus.is_asked(ours, one)} - {ours}
        assert others <= ({"RTXPRO6000-MaxQ"} if ours == "RTXPRO6000" else set()), theirs
        is_alike = [one for one in RUNPOD if same_gpu(one, theirs)]
        assert is_alike == [one for one in RUNPOD if gpus.is_asked(one, ours)], theirs


@pytest.mark.parametrize(
    ("asked", "theirs"),
    [
        ("A4000", "NVIDIA RTX A4000"), ("RTX A4000", "NVIDIA RTX A4000"), ("V100", "Tesla V100-SXM2-32GB"),
        ("V100-16GB", "Tesla V100-PCIE-16GB"), ("V100", "Tesla V100-FHHL-16GB"), ("mi300x", "AMD Instinct MI300X OAM"),
        ("MI300X", "AMD Instinct MI300X"), ("RTX 4080 SUPER", "NVIDIA GeForce RTX 4080 SUPER"),
        ("RTX6000Ada", "NVIDIA RTX 6000 Ada Generation"), ("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation"),
        ("RTXPRO6000-MIG-1G.24GB", f"{SERVER} MIG 1g.24gb"), ("rtxpro6000-mig", f"{SERVER} MIG 2g.48gb"),
        ("rtxpro6000 mig 1g.24gb", f"{SERVER} MIG 1g.24gb"), (f"{SERVER} MIG 1g.24gb", f"{SERVER} MIG 1g.24gb"),
        ("H100-MIG", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
        ("A100-80GB-MIG-3G.40GB", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"), ("A100-MIG", "a100_3g.20gb"),
        ("A100-MIG-3G.20GB", "a100_3g.20gb"), ("a100_3g.20gb", "a100_3g.20gb"), ("1g.10gb", "1g.10gb"),
        ("nvidia_a100-sxm4-40gb_3g.20gb", "nvidia_a100-sxm4-40gb_3g.20gb"),
    ],
)  # fmt: skip
def test_typed_gpu_names_match_vendor_names(asked, theirs):
    assert gpus.is_asked(asked, gpus.name(theirs)) and same_gpu(asked, theirs)


@pytest.mark.parametrize(
    ("asked", "theirs"),
    [
        ("RTXPRO6000", f"{SERVER} MIG 1g.24gb"), (SERVER, f"{SERVER} MIG 2g.48gb"), ("RTXPRO6000-MIG", SERVER),
        ("RTXPRO6000-MIG-1G.24GB", SERVER), ("RTXPRO6000-MIG-1G.24GB", f"{SERVER} MIG 2g.48gb"),
        ("H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb"), ("A100-80GB", "NVIDIA A100-SXM4-80GB MIG 3g.40gb"),
        ("A100", "a100_3g.20gb"), ("A100", "nvidia_a100-sxm4-40gb_3g.20gb"), ("A100", "a100-1g.5gb"),
        ("a100", "a100_mig_1c.3g.20gb"), ("H100", "nvidia_h100_80gb_hbm3_1g.10gb+me"), ("A100", "3g.20gb"),
        ("H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), ("a100_3g.20gb", "a100"), ("A100-MIG-1G.5GB", "a100_3g.20gb"),
        ("A100", "mig-1g.5gb"), ("GB10", "NVIDIA GB10 MIG 1g.5gb"),
        ("L4", "NVIDIA L40S"), ("RTX3090", "NVIDIA GeForce RTX 3090 Ti"),
        ("RTX4080", "NVIDIA GeForce RTX 4080 SUPER"), ("RTX4000Ada", "NVIDIA RTX 4000 SFF Ada Generation"),
    ],
)  # fmt: skip
def test_a_slice_is_never_a_whole_gpu_and_kinds_are_distinct(asked, theirs):
    assert not gpus.is_asked(asked, gpus.name(theirs)) and not same_gpu(asked, theirs)


@pytest.mark.parametrize(("name", "is_one", "memory_gb"), [
    ("RTX4090", True, 24), ("H100", True, 80), ("RTXPRO6000-MIG-1G.24GB", True, 24), ("MI300X", False, 192),
    ("V100-32GB-SXM", False, 32), ("A2000", False, 6), ("GTX1080", False, 0), ("", False, 0),
])  # fmt: skip
def test_a_training_by_default_uses_nvidia_gpus_of_known_speed(name, is_one, memory_gb):
    assert gpus.is_for_training(name) is is_one
    assert gpus.memory_bytes(name) == memory_gb * 10**9


def test_an_unlisted_name_is_recognized_by_its_letters():
    assert same_gpu("A100-80GB", "nvidia_a100_80gb_pcie") and same_gpu("GB10", "NVIDIA GB10")
    assert not same_gpu("A100", "nvidia_a100_mig 1g.10gb") and not same_gpu("A100", "")


@pytest.mark.parametrize(
    ("text", "count", "theirs", "number", "found", "why"),
    [
        ("L4,A10G", 1, "NVIDIA L4", 1, ("L4", 1), ""),
        ("L4,A10G", 0, "NVIDIA A10G", 4, ("A10G", 0), ""),
        ("L4,A10G", 1, "NVIDIA H100 80GB HBM3", 8, None, "the GPU is NVIDIA H100 80GB HBM3"),
        ("L4,A10G", 2, "NVIDIA L4", 1, None, "the machine has 1 GPUs"),
        ("H100:8", 0, "NVIDIA H100 80GB HBM3", 8, ("H100", 8), ""),
        ("H100:8", 0, "NVIDIA H100 80GB HBM3", 4, None, "the machine has 4 GPUs"),
        ("H100:4,H100:8,A100:2", 0, "NVIDIA H100 80GB HBM3", 8, ("H100", 8), ""),
        ("H100:8,A100:4", 0, "NVIDIA A100-SXM4-80GB", 8, ("A100", 4), ""),
        ("H100:8,A100:4", 0, "NVIDIA H100 80GB HBM3", 4, None, "the machine has 4 GPUs"),
        ("A100-80GB", 1, "NVIDIA A100-SXM4-80GB", 1, ("A100-80GB", 1), ""),
        ("", 2, "NVIDIA L4", 2, ("", 2), ""),
        ("", 2, "NVIDIA L4", 1, None, "the machine has 1 GPUs"),
        ("", 0, "", 0, ("", 0), ""),
        ("L4", 1, "", 0, None, "the machine has no GPUs"),
        ("L4", 0, "", 0, None, "the GPU is none"),
    ],
)
def test_own_machine_satisfies_one_kind_of_a_set(tmp_path, monkeypatch, text, count, theirs, number, found, why):
    request = Request(run="a-1", gpu=text, num_gpus=count)
    assert chosen_gpus(request, theirs, number) == found
    assert request_mismatch(request, HostHardware(gpu=theirs, num_gpus=number)) == why
    monkeypatch.setattr(local, "_gpus", lambda: [theirs] * number)
    assert [one.num_gpus for one in Local(tmp_path).offers(request)] == ([] if why else [number])


SLICES = "a100_3g.20gb 1g.10gb 1g.10gb+me nvidia_a100-sxm4-40gb_3g.20gb mig-1g.5gb A100-MIG".split()


@pytest.mark.parametrize(
    ("name", "is_slice"),
    [(name, name in SLICES) for name in (*SLICES, "a100", "nvidia_a100_80gb_pcie", "a100_80gb", "")],
)
def test_a_type_of_slurm_with_a_mig_profile_is_a_slice(name, is_slice):
    assert gpus.is_slice(name) is is_slice


def test_a_slice_is_as_fast_as_its_share_of_the_compute_slices():
    assert gpus.tflops("RTXPRO6000-MIG-1G.24GB") == gpus.tflops("RTXPRO6000") / 4 == 125
    assert gpus.tflops("RTXPRO6000-MIG-2G.48GB") == 250
    assert gpus.tflops("H100-SXM-MIG-3G.40GB") == 989 * 3 / 7
    assert gpus.tflops("V100-16GB-PCIe-MIG-1G.5GB") is None is gpus.tflops("V100-16GB-PCIe")


@pytest.mark.parametrize(
    ("theirs", "memory_gb", "interconnect", "ours"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "", "H100-SXM"),
        ("nvidia  h100 80gb hbm3", 0, "", "H100-SXM"),
        ("NVIDIA A100-SXM4-80GB", 80, "", "A100-80GB-SXM"),
        ("NVIDIA A100-PCIE-40GB", 40, "", "A100-40GB-PCIe"),
        ("A100", 40, "pcie", "A100-40GB-PCIe"),
        ("A100", 40, "sxm4", "A100-40GB-SXM"),
        ("A100_80G", 80, "sxm4", "A100-80GB-SXM"),
        ("A100_80G", 80, "pcie", "A100-80GB-PCIe"),
        ("H100", 80, "sxm5", "H100-SXM"),
        ("H100", 94, "pcie", "H100-NVL"),
        ("H200", 141, "sxm5", "H200-SXM"),
        ("H200", 141, "pcie", "H200-NVL"),
        ("B200", 192, "sxm6", "B200"),
        ("NVIDIA RTX A6000", 48, "", "A6000"),
        ("NVIDIA GeForce RTX 3090", 24, "", "RTX3090"),
        ("NVIDIA RTX 6000 Ada Generation", 48, "", "RTX6000Ada"),
    ],
)
def test_every_vendor_name_has_one_gpu_name(theirs, memory_gb, interconnect, ours):
    assert gpus.name(theirs, memory_gb, interconnect) == ours


def test_the_table_maps_back_to_every_vendor_name():
    assert gpus.ids("runpod", "A100") == ("NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB")
    assert gpus.ids("shadeform", "A100-80GB") == ("A100_80G",)
    assert gpus.ids("lium", "H100-SXM") == ("NVIDIA H100 80GB HBM3",)
    assert gpus.ids("runpod", "A100-40GB") == ()
    for gpu in gpus.GPUS:
        for vendor in ("runpod", "lium"):
            for one in getattr(gpu, vendor):
                assert gpus.name(one) == gpu.name and one in gpus.ids(vendor, gpu.name)
        for one in gpu.shadeform:
            assert gpus.is_asked(gpu.name, gpus.name(one, gpu.memory_gb, gpu.name.rpartition("-")[2]))


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("A100", "A100-80GB-SXM"), ("a100-80gb", "A100-80GB-PCIe"), ("A100-SXM", "A100-80GB-SXM"), ("H100", "H100-NVL"),
        ("RTX 4090", "RTX4090"), ("rtx4090", "RTX 4090"), ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("RTX6000Ada", "RTX6000Ada"), ("RTX A6000", "A6000"), ("H200-SXM", "H200-SXM"),
    ],
)  # fmt: skip
def test_a_general_name_includes_its_variants(asked, ours):
    assert gpus.is_asked(asked, ours)


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("A100", "RTX A1000"), ("A10", "A100-80GB-SXM"), ("A100-80GB", "A100-40GB-PCIe"), ("H100-SXM", "H100-PCIe"),
        ("L40", "L40S"), ("6000", "A6000"), ("H100", ""), ("NVIDIA H100 PCIe", "H100-SXM"), ("", "H100-SXM"),
    ],
)  # fmt: skip
def test_no_name_matches_a_different_gpu(asked, ours):
    assert not gpus.is_asked(asked, ours)


def test_a_set_is_read_with_its_counts():
    assert gpus.read_set("A100:1, A100-80GB:2,H100") == (("A100", 1), ("A100-80GB", 2), ("H100", 0))
    assert gpus.read_set("H100", 8) == (("H100", 8),)
    assert gpus.read_set("") == ()
    for wrong in ("H100:", "H100:x", "H100:0", ":8"):
        with pytest.raises(UsageError, match="--gpu"):
            gpus.read_set(wrong)
