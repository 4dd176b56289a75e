"""One name for each GPU, whoever offers it."""

import pytest

from infra.errors import UsageError
from infra.market import gpus


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
        ("NVIDIA RTX 6000 Ada Generation", 48, "", "RTX 6000 Ada Generation"),
    ],
)
def test_every_vendor_s_word_has_one_name(theirs, memory_gb, interconnect, ours):
    assert gpus.name(theirs, memory_gb, interconnect) == ours


def test_the_table_leads_back_to_every_vendor_s_words():
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
        ("RTX6000Ada", "RTX 6000 Ada Generation"), ("RTX A6000", "A6000"), ("H200-SXM", "H200-SXM"),
    ],
)  # fmt: skip
def test_a_general_name_means_the_special_ones(asked, ours):
    assert gpus.is_asked(asked, ours)


@pytest.mark.parametrize(
    ("asked", "ours"),
    [
        ("A100", "RTX A1000"), ("A10", "A100-80GB-SXM"), ("A100-80GB", "A100-40GB-PCIe"), ("H100-SXM", "H100-PCIe"),
        ("L40", "L40S"), ("6000", "A6000"), ("H100", ""), ("NVIDIA H100 PCIe", "H100-SXM"), ("", "H100-SXM"),
    ],
)  # fmt: skip
def test_no_name_means_another_gpu(asked, ours):
    assert not gpus.is_asked(asked, ours)


def test_a_set_is_read_with_its_counts():
    assert gpus.read_set("A100:1, A100-80GB:2,H100") == (("A100", 1), ("A100-80GB", 2), ("H100", 0))
    assert gpus.read_set("H100", 8) == (("H100", 8),)
    assert gpus.read_set("") == ()
    for wrong in ("H100:", "H100:x", "H100:0", ":8"):
        with pytest.raises(UsageError, match="--gpu"):
            gpus.read_set(wrong)
