"""Packed conversations are trained on like conversations in separate rows; a step waits for the device once."""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode

import bench.gpu
import trainer.__main__
from bench.gpu.parts import PARTS
from bench.gpu.setup import Bench, text_of
from data.chat.conversations import Conversations
from data.chat.packing import packed
from data.config import ConfigError
from data.tokens.tokenizer import Tokenizer
from tests.trainer.checkpoints.test_checkpoint import FACTS
from tests.trainer.conftest import TINY, tiny
from tests.trainer.model.test_model import IDS, QWEN3, random_model
from tests.trainer.model.test_packed import DOCUMENTS, gradients
from tests.world import ROOT
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.saving import Saver
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import Machine, prepare
from trainer.loop import Training
from trainer.model import attention
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import Batch
from trainer.objectives.passes import bounds, evenly, passes, seen_len
from trainer.objectives.source import StepSource
from trainer.parallel.allocator import SETTINGS, enable_expandable_segments
from trainer.parallel.process_group import Ranks
from trainer.records.model_config import BlocksConfig

PAD, LENGTH = 3, 64


def talk(step: int, rows: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return padded conversations of 4 to 60 tokens, some with targets and one without."""
    chance = np.random.default_rng([7, step])
    sizes = chance.integers(4, 61, rows)
    ids = np.full((rows, int(sizes.max())), PAD, np.int64)
    targets = np.full_like(ids, -1)
    for row, size in enumerate(sizes.tolist()):
        ids[row, :size] = chance.integers(0, TINY.vocab_size, size)
        targets[row, : size - 1] = np.where(chance.random(size - 1) < 0.6, ids[row, 1:size], -1)
    targets[0] = -1
    return ids, targets


def test_every_conversation_is_present_once_up_to_its_last_target():
    ids, targets = talk(0)
    batch = packed(ids, targets, LENGTH, PAD)
    last = [int(np.flatnonzero(row >= 0).max(initial=-1)) + 1 for row in targets]
    wanted = sorted((ids[row, :end].tolist(), targets[row, :end].tolist()) for row, end in enumerate(last) if end)
    found = []
    for row in range(len(batch["ids"])):
        for number in range(int(batch["documents"][row].max()) + 1):
            here = batch["documents"][row] == number
            assert (np.diff(np.flatnonzero(here)) == 1).all()
            if (batch["targets"][row][here] >= 0).any():
                found.append((batch["ids"][row][here].tolist(), batch["targets"][row][here].tolist()))
    assert sorted(found) == wanted and len(wanted) == len(ids) - 1
    assert len(batch["ids"]) * LENGTH < 0.8 * ids.size
    nothing = packed(ids[:1], targets[:1], LENGTH, PAD)
    assert nothing["ids"].shape == (1, LENGTH) and (nothing["targets"] == -1).all()


def test_micro_batches_are_even_and_bounded():
    assert [evenly(rows, 8) for rows in (1, 8, 9, 17, 64)] == [1, 8, 5, 6, 8]


def training(folder, is_packed: bool, drawn=talk, **changes) -> Training:
    config: PhaseConfig = tiny(
        **{
            "phase": "sft",
            "mixture": {"other": 1.0},
            "steps": 6,
            "rows": 12,
            "micro_rows": 4,
            "sequence_len": LENGTH,
            "dtype": "float32",
            **changes,
        }
    )
    model = Decoder(config.model)
    initialize(model, 1)

    def batch(step: int) -> Batch:
        ids, targets = drawn(step, config.rows)
        return packed(ids, targets, config.sequence_len, PAD) if is_packed else {"ids": ids, "targets": targets}

    saved = Checkpoints(folder / "saved", CheckpointOptions(save_every=100, reserve_bytes=0, samples=0))
    return Training(model, config, StepSource(batch), saved, FACTS, folder / "metrics")


@pytest.mark.slow
def test_packed_and_padded_conversations_have_equal_losses_and_token_counts(tmp_path):
    lines = []
    for name, is_packed in (("padded", False), ("packed", True)):
        training(tmp_path / name, is_packed).run()
        lines.append([json.loads(one) for one in (tmp_path / name / "metrics/metrics.jsonl").read_text().splitlines()])
    padded, shared = lines
    for figure in ("loss", "grad_norm"):
        assert [one[figure] for one in shared] == pytest.approx([one[figure] for one in padded], rel=1e-5)
    assert [one["tokens"] for one in shared] == [one["tokens"] for one in padded]
    assert abs(padded[-1]["loss"] - padded[0]["loss"]) > 1e-3  # A value was changed from step to step.


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_sorted", [True, False], ids=["batches of one length, as sft draws them", "as they come"])
def test_two_thousand_conversations_have_equal_losses_packed_and_padded(inputs, tmp_path, capsys, is_sorted):
    """Train on each once, and report tokens per CPU second: the gain of packing depends on the cost of padding."""
    chance, words = np.random.default_rng(5), "opens closes joins reads writes the paths files lines".split()
    with open(tmp_path / "conversations.jsonl", "w") as file:
        for _ in range(2000):
            question, answer = (" ".join(chance.choice(words, size)) for size in chance.geometric(0.15, 2).clip(1, 24))
            both = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": both}) + "\n")
    tokenizer = Tokenizer(inputs[0] / "tokenizer")
    own = Conversations({"own": [tmp_path / "conversations.jsonl"]}, {"own": 1.0}, tokenizer, 128, seed=1)
    rates, lines = [], []
    for name, is_packed in (("padded", False), ("packed", True)):
        drawn = own.batch if is_sorted else talk
        one = training(tmp_path / name, is_packed, drawn, steps=25, rows=80, micro_rows=16, sequence_len=128)
        began = time.process_time()
        one.run()
        spent_s = time.process_time() - began
        lines.append([json.loads(one) for one in (tmp_path / name / "metrics/metrics.jsonl").read_text().splitlines()])
        rates.append(sum(line["tokens"] for line in lines[-1]) / spent_s)
    padded, shared = ([line["loss"] for line in some] for some in lines)
    apart = max(abs(one - other) / other for one, other in zip(shared, padded, strict=True))
    with capsys.disabled():
        print(f"\npacked: {rates[1] / rates[0]:.2f} x the tokens per CPU second; losses {apart:.1e} apart at most")
    assert len(shared) == 25 and abs(padded[-1] - padded[0]) > 1e-3 and apart < 1e-5


def test_packing_is_a_choice_outside_of_every_fingerprint():
    sft = tiny(phase="sft", mixture={"other": 1.0})
    assert sft.is_packed("cuda") and not sft.is_packed("cpu")
    always = tiny(phase="sft", mixture={"other": 1.0}, packed="always")
    assert always.is_packed("cpu") and always.digest() == sft.digest()
    assert not tiny().is_packed("cuda")
    with pytest.raises(ConfigError, match="phase base: rows of this phase cannot be packed"):
        tiny(packed="always")


@pytest.mark.nightly
@pytest.mark.pack("bits")
@pytest.mark.pack("blocks")
@pytest.mark.process
@pytest.mark.slow
def test_gpu_bench_runs_at_toy_size_on_a_cpu(tmp_path):
    words = [sys.executable, "-m", "bench.gpu", "--toy", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert {row["part"] for row in rows} == {*PARTS} and not [row for row in rows if "failed" in row]
    seen = {row["what"]: row["seen"] for row in rows}
    assert seen["save and resume"]["apart"] == 0 and seen["sft toy packed"]["tokens_per_s"] > 0
    assert seen["sft toy packed"]["loss"] == pytest.approx(seen["sft toy padded"]["loss"], rel=1e-5)


@pytest.mark.nightly
def test_bench_saves_in_one_part_only_and_leaves_no_files(tmp_path, monkeypatch):
    """Checkpoints of one to a hundred gigabytes would fill a rented disk, and take longer than all timed parts."""
    saved, begin = [], Saver.start
    monkeypatch.setattr(Saver, "start", lambda self, step, *given: saved.append(step) or begin(self, step, *given))
    one = Bench(prepare(), Ranks(), is_toy=True, folder=tmp_path)
    config = one.phase("base")
    assert one.trained(config, text_of(config), 3)["tokens_per_s"] > 0 and saved == []
    (found,) = PARTS["saving"](one)
    assert found[1]["apart"] == 0 and len(saved) == 3 and saved[0] == saved[2] == 6 > saved[1]
    assert not [*tmp_path.iterdir()]


def test_bench_skips_8_bits_on_gpus_without_the_units(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    gpu = Machine(torch.device("cuda"), torch.bfloat16, 1)
    ((name, seen, _),) = PARTS["float8"](Bench(gpu, Ranks(), is_toy=True, folder=tmp_path))
    assert name == "float8" and "this GPU has 8.0" in seen["left_out"]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [({}, "expandable_segments:True"), ({"PYTORCH_ALLOC_CONF": "x:1"}, None), ({"PYTORCH_CUDA_ALLOC_CONF": "y"}, "y")],
)
def test_gpu_memory_is_taken_in_growing_segments_in_runs_and_in_the_bench(monkeypatch, given, wanted):
    for module in (trainer.__main__, bench.gpu):
        assert module.enable_expandable_segments is enable_expandable_segments
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    enable_expandable_segments()
    assert os.environ.get("PYTORCH_CUDA_ALLOC_CONF") == wanted


class Waits(TorchDispatchMode):
    """Records operations that would wait for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        asks = func.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::item", "aten::masked_select")
        if func.name().startswith(("aten::index", "aten::_index_put")):  # nonzero turns a mask into indices.
            indices = args[1] if isinstance(args[1], list | tuple) else []
            asks = any(one is not None and one.dtype == torch.bool for one in indices)
        if asks:
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_packed", [False, True])
def test_step_reads_numbers_from_the_device_once(tmp_path, monkeypatch, is_packed):
    one, asked = training(tmp_path, is_packed), []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: asked.append(len(self)) or tolist(self))
    one._resume(None)
    with one._batches() as batches, Waits() as waits:
        for _ in range(3):
            one._advance(batches, None, lambda: False, lambda: False)
    assert (
        waits.seen == [] and asked == [5] * 3
    )  # The norm, the stop flag, the save flag, the number of steps, the loss.


@pytest.mark.gpu
@pytest.mark.parametrize("is_packed", [False, True])
def test_step_waits_for_a_gpu_once(tmp_path, is_packed):
    one = training(tmp_path, is_packed)
    one.model = Decoder(one.config.model, torch.bfloat16)
    initialize(one.model, 1)
    one.model.to("cuda")
    one._resume(None)
    with one._batches() as batches, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        one._advance(batches, None, lambda: False, lambda: False)  # Kernels are loaded, memory is allocated.
        told.clear()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(3):
                one._advance(batches, None, lambda: False, lambda: False)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [str(one.message) for one in told if "synchronizing CUDA operation" in str(one.message)]
    assert len(waits) == 3, waits  # The norm, the stop flag, the loss: all at once.


@pytest.mark.pack("blocks")
def test_loss_of_blocks_never_reads_from_the_device():
    from packs.blocks.trainer.objective import BlockDiffusion, sequence, with_masks

    model, blocks = random_model(QWEN3), BlocksConfig(block_size=8, sub_block_size=4, mask_id=9)
    targets = np.where(np.arange(40) % 3 == 0, -1, np.roll(IDS.numpy(), -1, 1))
    whole = with_masks(IDS.numpy(), targets, 8, np.random.default_rng(1))
    for part in passes(whole, 1, model):
        expected = (sequence(part, blocks).targets.flatten() != -1).nonzero().squeeze(1)
        assert len(expected) == len(part["counted"]) > 0
        with Waits() as waits:
            model.compute_objective(BlockDiffusion(blocks), part)[0].backward()
        assert waits.seen == []


def each_document(cu: torch.Tensor) -> Iterator[slice]:
    ends = cu.tolist()
    return (slice(start, end) for start, end in zip(ends, ends[1:], strict=False) if end > start)


def reference_attention(q, k, v, cu, is_causal, enable_gqa):
    """Return (total, H, D) as specified for the kernel, document by document."""
    found = torch.zeros_like(q)
    for part in each_document(cu):
        one = (each[part].transpose(0, 1)[None] for each in (q, k, v))
        found[part] = F.scaled_dot_product_attention(*one, is_causal=is_causal, enable_gqa=enable_gqa)[0].transpose(
            0, 1
        )
    return found


def reference_gradients(slope, q, k, v, cu):
    """Return the gradients of `plain` with a causal mask: a kernel runs without autograd."""
    found, shared, scale = [torch.zeros_like(one) for one in (q, k, v)], q.shape[1] // k.shape[1], q.shape[2] ** -0.5
    for part in each_document(cu):
        queries, given = q[part].transpose(0, 1), slope[part].transpose(0, 1)
        keys, values = (one[part].repeat_interleave(shared, dim=1).transpose(0, 1) for one in (k, v))
        later = torch.ones(queries.shape[1], queries.shape[1], dtype=torch.bool).triu(1)
        weights = (queries @ keys.mT * scale).masked_fill(later, float("-inf")).softmax(dim=-1)
        inner = given @ values.mT
        scores = weights * (inner - (inner * weights).sum(dim=-1, keepdim=True)) * scale
        for one, each in zip(found, (scores @ keys, scores.mT @ queries, weights.mT @ given), strict=True):
            size = one.shape[1]
            one[part] = each.view(size, -1, *each.shape[1:]).sum(dim=1).transpose(0, 1)
    return tuple(found)


@pytest.fixture
def kernel_for_cpus():
    """Register the kernel of packed rows, which exists for GPUs only, by its specification for the CPU.

    The operators stay registered for the rest of the process, without other users.
    """

    def forward(q, k, v, cu, cu_k, max_q, max_k, *rest):
        is_causal, scale, window, gqa = rest[:4]
        assert torch.equal(cu, cu_k) and cu.dtype == torch.int32 and is_causal and window == [-1, 0]
        assert max(one.stop - one.start for one in each_document(cu)) <= max_q == max_k and scale is None
        state = torch.zeros(2, dtype=torch.uint64)
        return (
            reference_attention(q, k, v, cu, is_causal, gqa),
            q.new_zeros(q.shape[1], len(q), dtype=torch.float32),
            state,
        )

    def backward(slope, q, k, v, out, lse, cu, *rest):
        return reference_gradients(slope, q, k, v, cu)

    varlen._varlen_attn.register_kernel("cpu", forward)
    varlen._varlen_attn_backward.register_kernel("cpu", backward)


@pytest.mark.slow
def test_packed_rows_have_the_loss_and_gradients_of_the_mask(kernel_for_cpus, monkeypatch):
    """Test the whole path to the GPU's kernel and back except the kernel: layout, bounds, shared heads."""
    model, targets = random_model(QWEN3), IDS.roll(-1, 1)
    assert QWEN3.num_attention_heads != QWEN3.num_key_value_heads
    expected = gradients(model, IDS, targets, DOCUMENTS)
    batch = {"ids": IDS.numpy(), "targets": targets.numpy(), "documents": DOCUMENTS.numpy()}
    assert "bounds" not in passes(batch, 2, model)[0]
    monkeypatch.setattr("trainer.objectives.passes.has_varlen", lambda *about: True)
    (whole,) = passes(batch, 2, model)
    seen = []
    told = attention.attend_packed_documents
    monkeypatch.setattr(attention, "attend_packed_documents", lambda *given: seen.append(given) or told(*given))
    found = gradients(model, *(whole[name] for name in ("ids", "targets", "documents", "bounds", "counted")))
    assert len(seen) == QWEN3.num_hidden_layers
    for name, one in expected.items():
        assert torch.allclose(one, found[name], rtol=1e-3, atol=1e-5), name


def test_bounds_end_documents_at_row_ends_and_have_few_sizes():
    found = bounds(DOCUMENTS.numpy())
    assert found[:6].tolist() == [0, 7, 8, 28, 40, 80] and found.dtype == np.int32
    assert len(found) == 65 and set(found[5:].tolist()) == {80}
    same = np.zeros((2, 40), np.int64)  # One number in both rows: two documents.
    assert bounds(same)[:3].tolist() == [0, 40, 80]
    assert seen_len(same) == 40 and seen_len(DOCUMENTS.numpy()) == round((49 + 1 + 400 + 144 + 1600) / 80)
