"""The machine settings of a program before the first tensor."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import types

import pytest
import torch
from torch.nn.attention import SDPBackend, current_flash_attention_impl

from flows.planning import estimates
from infra.market.gpus import GPUS, tflops
from tests.programs import source
from tests.trainer.checkpoints.test_checkpoint import training
from tests.trainer.model.test_model import LLAMA, random_model
from tests.world import ROOT
from trainer import chat, device, memory, recipes, speed
from trainer.checkpoints import random_state
from trainer.config import EvalSpec
from trainer.device import Hardware, Machine
from trainer.errors import OutOfMemory, Refused
from trainer.evaluation import scores
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.parallel import placement
from trainer.parallel.fitting import advice
from trainer.parallel.process_group import Ranks
from trainer.records import phase_options
from trainer.reporting.peak_flops import of_name

COUNT = source("page_faults")


@pytest.mark.nightly
@pytest.mark.process
def test_freed_memory_is_reused_unless_the_allocator_is_configured():
    ours = {name: value for name, value in os.environ.items() if not name.startswith(device.MALLOC_SETTINGS)}
    told = {**ours, "MALLOC_MMAP_THRESHOLD_": "65536"}
    kept, new = (
        int(subprocess.run([sys.executable, "-c", COUNT], env=one, cwd=ROOT, check=True, capture_output=True).stdout)
        for one in (ours, told)
    )
    assert kept < 1000 < 8 * (64 << 20) // 4096 * 0.9 < new


def test_configured_allocator_is_left_alone(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert not device.keep_freed_memory()


CPU = Hardware(threads=4, has_cuda=False, bfloat16=False)


@pytest.mark.parametrize(
    ("seen", "kind", "dtype"),
    [
        (CPU, "cpu", torch.float32),
        (Hardware(4, False, True), "cpu", torch.bfloat16),
        (Hardware(4, True, True, "13.0"), "cuda", torch.bfloat16),
        (Hardware(4, True, False, "13.0"), "cuda", torch.float32),
        (Hardware(4, False, False, "13.0", is_hidden=True), "cpu", torch.float32),  # CUDA_VISIBLE_DEVICES=
    ],
)
def test_device_is_chosen_from_the_available_ones(seen, kind, dtype):
    machine = device.choose(seen)
    assert (machine.device.type, machine.fast, machine.threads) == (kind, dtype, 4)


@pytest.mark.parametrize(("capability", "dtype"), [(7, torch.float32), (8, torch.bfloat16)])
def test_gpu_with_emulated_bfloat16_computes_in_float32(monkeypatch, capability, dtype):
    """A V100 or a T4: bfloat16 tensors are possible, but the units cannot multiply them."""
    about = types.SimpleNamespace(major=capability)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda _: True)
    assert device.choose(device.detect_hardware()).fast == dtype


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Hardware(4, False, True, "13.0", ("GPU 0: NVIDIA H100",), why="driver is too old"),
         "is built for CUDA 13.0, nvidia-smi lists GPU 0: NVIDIA H100: driver is too old. Install a driver"),
        (Hardware(4, False, True, "13.0"), "nvidia-smi lists no GPU"),
        (Hardware(4, False, True, "", ("GPU 0: NVIDIA L4",)), "is a build for CPUs, .*Install a PyTorch build"),
    ],
)  # fmt: skip
def test_unusable_gpu_is_never_silently_replaced_by_the_cpu(seen, words):
    with pytest.raises(Refused, match=f"{words}.*CUDA_VISIBLE_DEVICES= before the command"):
        device.choose(seen)


@pytest.mark.process
def test_gpus_listed_by_the_driver_count_unless_hidden(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\necho other\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device.detect_hardware().gpus == ("GPU 0: NVIDIA H100 80GB HBM3",)
    with pytest.raises(Refused, match="does not fall back to the CPU"):
        device.prepare()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.prepare().device.type == "cpu"


def test_chat_and_evaluation_run_on_the_training_device(inputs, tmp_path, monkeypatch):
    """`meta` stands for a GPU: a device other than the CPU."""
    folder, machine = tmp_path / "hf", Machine(torch.device("meta"), torch.bfloat16, 1)
    shape = dataclasses.replace(LLAMA, vocab_size=320)
    export.write(folder, shape, random_model(shape).state_dict(), inputs[0] / "tokenizer")
    model = export.load_for_inference(folder, machine)
    assert {(one.device.type, one.dtype) for one in model.parameters()} == {("meta", torch.bfloat16)}
    assert (
        export.load_for_inference(folder, Machine(torch.device("cpu"), torch.bfloat16, 1)).head.dtype == torch.float32
    )
    seen = []
    monkeypatch.setattr(device, "prepare", lambda: machine)
    monkeypatch.setattr(torch, "Generator", lambda where: torch.default_generator)  # meta has none.
    assert chat.Torch(folder, 0.0, 0, 0).model.head.device.type == "meta"
    monkeypatch.setattr(
        scores, "of_text", lambda model, *rest: seen.append(model) or {"value": 1.0, "loss": {"value": 1}}
    )
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "0.txt").write_text("words")
    scores.scores(EvalSpec(model=str(folder), text=str(tmp_path)))
    assert seen[0].head.device.type == "meta"


def test_full_gpu_ends_with_a_fitting_batch_size(monkeypatch):
    config = recipes.PROFILES["runpod_1b"]().phases["base"]
    config = dataclasses.replace(config, micro_rows=config.rows // 8)
    monkeypatch.setattr(placement, "gpu_bytes", lambda machine: 24 << 30)
    cpu = Machine(torch.device("cpu"), torch.bfloat16, 1)
    with pytest.raises(OutOfMemory) as raised, placement.explain_out_of_memory(config, cpu, "ddp", Ranks()):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    said = str(raised.value)
    assert said.endswith("[CUDA out of memory. Tried to allocate 2.00 GiB.]")
    rows = int(re.search(r"--set base\.micro_rows=(\d+) \(", said)[1])
    fewer = dataclasses.replace(config, micro_rows=rows)
    assert rows < config.micro_rows and config.rows % rows == 0
    assert memory.gib(memory.estimate(fewer).total) in said and "--set base.recompute=true" in said
    larger = float(re.search(r"a GPU with ([0-9.]+) GiB", said)[1])
    assert memory.estimate(config).total <= 0.85 * larger * 2**30
    assert "24.0 GiB" in said and "parallel=fsdp" not in said
    assert "--set base.parallel=fsdp" in advice(config, 24 << 30, "ddp", per_node=8)


def test_full_gpu_of_rl_reports_the_fitting_number_of_answers():
    config = recipes.PROFILES["runpod_1b"]().phases["rl"]
    rows, model = config.rl.side_by_side, config.model
    kept = 2 * 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * config.sequence_len
    said = advice(config, 24 << 30, "ddp")
    assert f"--set rl.rl.side_by_side={rows // 2} " in said
    assert f"{memory.gib(rows // 2 * kept)} instead of {memory.gib(rows * kept)}" in said


def test_rows_are_fitted_to_a_gpu_at_the_start_and_kept_over_restarts(monkeypatch):
    config = recipes.PROFILES["runpod_2b"]().phases["base"]
    gpu, cpu = (Machine(torch.device(kind), torch.bfloat16, 1) for kind in ("cuda", "cpu"))
    monkeypatch.setattr(placement, "gpu_bytes", lambda machine: 141 * 10**9)
    found = placement.with_fitting_micro_batch(config, Ranks(), gpu, {})
    assert found.micro_rows > config.micro_rows and config.rows % found.micro_rows == 0
    assert memory.estimate(found).total < 141e9 and found.digest() == config.digest()
    assert placement.with_fitting_micro_batch(config, Ranks(), cpu, {}) == config
    in_32_bits = placement.with_fitting_micro_batch(
        config, Ranks(), Machine(torch.device("cuda"), torch.float32, 1), {}
    )
    assert memory.estimate(dataclasses.replace(in_32_bits, dtype="float32")).total < 141e9
    assert in_32_bits.dtype == "auto" and in_32_bits.micro_rows < found.micro_rows
    asked = phase_options.with_options(config, {"base.micro_rows": "4"})
    assert placement.with_fitting_micro_batch(asked, Ranks(), gpu, {}).micro_rows == 4
    kept = {"micro_rows": 4, "recompute": True}  # Of a checkpoint.
    assert placement.with_fitting_micro_batch(config, Ranks(), gpu, kept) == dataclasses.replace(config, **kept)
    monkeypatch.setattr(placement, "gpu_bytes", lambda machine: 48 * 10**9)
    smaller = placement.with_fitting_micro_batch(
        config, Ranks(), gpu, {"micro_rows": found.micro_rows, "recompute": False}
    )
    assert memory.estimate(smaller).total < 48e9


def test_host_copy_for_checkpoints_must_fit_into_the_machine_memory(monkeypatch):
    phase = recipes.PROFILES["runpod_1b"]().phases["base"]
    gpu = {"memory_bytes": 80 * 10**9}
    monkeypatch.setattr(estimates.host, "nvidia", lambda: ([gpu], ""))
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 3 * phase.model.num_params}
    monkeypatch.setattr(estimates.os, "sysconf", pages.__getitem__)
    assert estimates.memory_shortage([phase]) == ""
    pages["SC_PHYS_PAGES"] = 12 * phase.model.num_params // 4096 - 1
    found = estimates.memory_shortage([phase])
    assert found.startswith("base copies ") and "to write checkpoints, but this machine has" in found


def test_gpu_machine_without_a_compiler_is_refused_with_the_package(monkeypatch):
    config = recipes.PROFILES["runpod_1b"]().phases["base"]
    gpu = Machine(torch.device("cuda"), torch.bfloat16, 1)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(Refused, match="triton is not installed .package triton.*--set base.compile=never"):
        speed.is_compiled(config, gpu)
    monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(Refused, match="a C compiler is missing .no-such-compiler; package gcc"):
        speed.is_compiled(config, gpu)
    assert not speed.is_compiled(dataclasses.replace(config, compile="never"), gpu)
    monkeypatch.delenv("CC")
    monkeypatch.setattr(speed.shutil, "which", lambda name: name if name == "cc" else None)
    with pytest.raises(Refused, match="a C compiler is missing .gcc, clang; package gcc"):  # Triton needs no cc.
        speed.is_compiled(config, gpu)


@pytest.mark.pack("blocks")
def test_compiled_attention_is_refused_without_a_compiler(monkeypatch):
    phases = recipes.PROFILES["tiny"]().phases
    gpu, wide = (Machine(torch.device("cuda"), dtype, 1) for dtype in (torch.bfloat16, torch.float32))
    masked = dataclasses.replace(phases["base"], document_masks=True, compile="never")
    blocks = dataclasses.replace(phases["dlm"], compile="never")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setitem(sys.modules, "triton", None)
    for config, machine in ((masked, wide), (blocks, gpu)):
        words = f"{config.phase}: on a GPU the attention of this phase must be compiled, but triton is not installed"
        with pytest.raises(Refused, match=words), speed.training_setup(Decoder(config.model), config, machine):
            pass
    for config in (masked, dataclasses.replace(phases["base"], compile="never")):  # By varlen, or by a plain kernel.
        with speed.training_setup(Decoder(config.model), config, gpu):
            pass


def test_gpu_generator_state_is_saved_and_restored(tmp_path, monkeypatch):
    states = [torch.full((16,), 7, dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: states[-1])
    monkeypatch.setattr(torch.cuda, "set_rng_state", states.append)
    saved = random_state.random_state()
    states.append(torch.zeros(16, dtype=torch.uint8))
    random_state.set_random_state(saved)
    assert torch.equal(states[-1], saved["cuda"])
    monkeypatch.undo()
    assert "cuda" not in random_state.random_state()
    first = training(tmp_path / "one", steps=2).run()
    assert set(first.tensors("rng")) == {"torch"}  # A checkpoint of a CPU resumes on any device.


FLASH_3 = """
import torch

library = torch.library.Library("flash_attn_3", "FRAGMENT")
for name in ("fwd", "bwd"):
    library.define(f"{name}(Tensor q) -> Tensor")
"""


def test_fastest_attention_comes_first_on_supporting_gpus_and_only_during_training(monkeypatch, tmp_path):
    """All but the kernels themselves is PyTorch's own: activation, order, and restoration."""
    gpu, order = Machine(torch.device("cuda"), torch.bfloat16, 1), torch._C._get_sdp_priority_order
    capability = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability[0])
    before = order()
    cpu = Machine(torch.device("cpu"), torch.float32, 1)
    plain = ((cpu, 9, False, ""), (gpu, 8, False, ""), (gpu, 9, True, ""))
    for machine, major, is_deterministic, name in (*plain, (gpu, 9, False, "cuDNN"), (gpu, 10, False, "cuDNN")):
        capability[0] = (major, 0)
        with speed.fast_attention(machine, is_deterministic) as found:
            assert found == name
            assert (order()[0] == SDPBackend.CUDNN_ATTENTION.value) == bool(name) and sorted(order()) == sorted(before)
        assert order() == before
    with speed.fast_attention(gpu, False, has_one_shape=False) as found:  # Rows of many lengths.
        assert found == "" and order() == before
    with speed.fast_attention(gpu, False) as found, speed.uncompiled(random_model(LLAMA)):  # The model's own choice.
        assert found == "cuDNN" and order()[0] != SDPBackend.CUDNN_ATTENTION.value
    assert order() == before
    monkeypatch.syspath_prepend(str(tmp_path))
    notes = []
    monkeypatch.setattr(speed, "emit", lambda kind, **about: notes.append(about["text"]))
    capability[0] = (9, 0)
    (tmp_path / "flash_attn_interface.py").write_text("raise ImportError('built for another PyTorch')")
    with speed.fast_attention(gpu, False) as found:
        assert found == "cuDNN" and "built for another PyTorch" in notes[0]
    (tmp_path / "flash_attn_interface.py").write_text(FLASH_3)
    importlib.invalidate_caches()
    with speed.fast_attention(gpu, False) as found:
        assert found == "FA3" and current_flash_attention_impl() == "FA3" and order() == before
    assert current_flash_attention_impl() is None


def test_every_gpu_of_the_markets_has_a_peak_speed():
    for gpu in GPUS:
        for name in (*gpu.runpod, *gpu.lium):
            # Some have no sheet for bfloat16; a slice itself reports the number of multiprocessors.
            assert of_name(name, 42) or tflops(gpu.name) is None, name
