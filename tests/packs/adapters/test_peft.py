"""Adapters compared with peft on the same weights: logits in both directions, and the losses of 20 steps."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from packs.adapters.trainer.lora import Lora
from tests.packs.adapters.test_lora import adapted, attached
from tests.trainer.model.test_model import IDS, LLAMA, QWEN2, QWEN3, random_model
from trainer.loop import accumulate
from trainer.model import changes, export, huggingface
from trainer.model.decoder import Decoder
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer
from trainer.records.model_config import ModelConfig

pytestmark = pytest.mark.slow
SHAPES = pytest.mark.parametrize("shape", [LLAMA, QWEN2, QWEN3], ids=["llama", "qwen2", "qwen3"])
STEPS = 20
OTHER = changes.ChangedModel(name="imported/x", fingerprint="y", weights_sha256="z", source="hf://a/b", revision="c")


@pytest.fixture
def peft() -> ModuleType:
    """Return the module; its import takes seconds, and every worker imports the modules of tests."""
    import peft

    return peft


def in_transformers(folder: Path, shape: ModelConfig, model: Decoder) -> torch.nn.Module:
    """Return the model of transformers with the weights of a decoder."""
    from transformers import AutoModelForCausalLM

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(huggingface.config_json(shape, "float32", 0, [1])))
    export.write_weights(folder, model.state_dict(), torch.float32)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        found = model.eval()(IDS)
    return found if isinstance(found, Tensor) else found.logits


@SHAPES
def test_peft_loads_our_adapter_and_we_load_an_adapter_of_peft(tmp_path, peft, shape):
    config = adapted(model=shape, sequence_len=64, adapter={"rank": 4, "rslora": True})
    ours, theirs = (
        attached(random_model(shape), config, std=0.02),
        in_transformers(tmp_path / "m", shape, random_model(shape)),
    )
    (tmp_path / "ours").mkdir()
    Lora().write(tmp_path / "ours", ours, config, OTHER)
    loaded = peft.PeftModel.from_pretrained(theirs, tmp_path / "ours")
    assert loaded.peft_config["default"].base_model_name_or_path == "a/b"
    assert loaded.peft_config["default"].revision == "c"
    torch.testing.assert_close(logits(loaded), logits(ours), rtol=1e-4, atol=1e-4)

    made = in_transformers(tmp_path / "n", shape, random_model(shape))
    how = peft.LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    made = peft.get_peft_model(made, how)
    made.save_pretrained(tmp_path / "theirs")
    merged = random_model(shape)
    Lora().apply(merged, tmp_path / "theirs")
    torch.testing.assert_close(logits(merged), logits(made), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(merged), logits(random_model(shape)), atol=1e-2)


@SHAPES
def test_losses_of_20_steps_equal_losses_of_peft(tmp_path, peft, shape):
    config = adapted(model=shape, sequence_len=64, adapter={"rank": 4})
    ours = attached(random_model(shape), config)
    Lora().write(tmp_path, ours, config, OTHER)
    base = in_transformers(tmp_path / "m", shape, random_model(shape))
    theirs = peft.PeftModel.from_pretrained(base, tmp_path, is_trainable=True).train()
    learning = [one for one in theirs.parameters() if one.requires_grad]
    how = config.optimizer
    judge = torch.optim.AdamW(learning, lr=how.lr, betas=how.betas, eps=how.eps, weight_decay=how.weight_decay)
    optimizer, losses = Optimizer(ours, how), []
    for step in range(STEPS):
        ids = torch.randint(0, shape.vocab_size, (4, 33), generator=torch.Generator().manual_seed(step % 4))
        given, wanted = ids[:, :-1], ids[:, 1:]
        judge.zero_grad()
        found = torch.nn.functional.cross_entropy(theirs(given).logits.flatten(0, 1), wanted.flatten())
        found.backward()
        torch.nn.utils.clip_grad_norm_(learning, how.grad_clip)
        judge.step()
        optimizer.zero_grad()
        batch = {"ids": given.numpy(), "targets": wanted.numpy()}
        losses.append((float(accumulate(ours, batch, 4, wanted.numel(), CrossEntropy())["loss"]), found.item()))
        optimizer.clip()
        optimizer.step(1.0)
    assert max(abs(a - b) for a, b in losses) < 1e-4, losses
    assert losses[16][0] < losses[0][0] - 0.01  # the same batch
