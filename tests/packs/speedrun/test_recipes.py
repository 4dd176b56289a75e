"""The profiles with nanochat's recipe of 2026."""

from dataclasses import replace

import pytest
import torch

from flows.planning.training_plan import PlannedWork
from flows.specs.work import WorkSpec
from infra.settings import Settings
from tests.world import ROOT
from trainer.model.decoder import Decoder, initialize
from trainer.optim import Optimizer
from trainer.plan import recipe
from trainer.plan.estimates import known_text_bytes, passes_over
from trainer.recipes import PROFILES


@pytest.mark.parametrize(
    ("name", "params", "matrix_params", "tokens_of_a_step", "tokens_per_param"),
    [  # `total` and `transformer_matrices` + `lm_head` of nanochat's `num_scaling_params` at these depths.
        ("speedrun", 1_384_122_122, 729_810_624, 2**20, 8),
        ("speedrun_d20", 896_533_746, 435_160_240, 2**20, 12),
        ("speedrun_d12", 286_261_730, 110_100_912, 2**19, 12),
    ],
)
def test_profile_has_the_size_and_the_length_of_nanochat(
    name, params, matrix_params, tokens_of_a_step, tokens_per_param
):
    base = PROFILES[name]().phases["base"]
    model = base.model
    gains = model.hidden_size * (2 * model.num_hidden_layers + 2) + 2 * model.head_dim * model.num_hidden_layers
    assert model.num_params - gains == params
    gates = model.num_key_value_heads * 12 * model.num_hidden_layers // 2
    assert model.num_matrix_params + gates == matrix_params
    assert base.rows * base.sequence_len == tokens_of_a_step
    assert base.steps * tokens_of_a_step / model.num_matrix_params == pytest.approx(tokens_per_param, rel=1e-2)


def test_operations_count_the_tokens_in_the_windows():
    model = PROFILES["speedrun"]().phases["base"].model  # nanochat's `estimate_flops` has the same number
    assert model.flops_per_token(2048) == pytest.approx(4.775e9, rel=1e-3)
    assert model.flops_per_token(256) == replace(model, nanochat=None).flops_per_token(256)


@pytest.mark.parametrize(("name", "share"), [("speedrun", 1.0), ("speedrun_d12", 1.0), ("speedrun_d4", 1.0)])
def test_smear_and_backout_learn_at_a_rate_without_a_batch(name, share):
    profile = PROFILES[name]()
    assert profile.phases["base"].optimizer.smear_lr == 0.2 * share
    assert profile.phases["sft"].optimizer.smear_lr < 0.2


def test_first_steps_of_d4_lower_the_loss_with_the_rates_of_every_part():
    base = replace(PROFILES["speedrun_d4"]().phases["base"], dtype="float32")
    small = replace(base.model, hidden_size=128, num_attention_heads=1, num_key_value_heads=1, intermediate_size=512)
    model = Decoder(small)
    initialize(model, 1)
    optimizer = Optimizer(model, base.optimizer)
    rates = {optimizer.names[one]: group.lr for group in optimizer.adamw for one in group.parameters}
    assert rates["model.value_embeds.3.weight"] == base.optimizer.value_lr
    assert rates["model.embed_scales"] == 100 * rates["model.residual_scales"] == 2.5 * rates["model.smear_scale"]
    ids = torch.arange(96).remainder(12).view(1, -1) + 7
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = model.loss(ids[:, :-1], ids[:, 1:]) / (ids.numel() - 1)
        loss.backward()
        optimizer.step(1.0)
        losses.append(loss.item())
    assert losses[0] == pytest.approx(8.3, abs=0.1) and losses[-1] < 2


@pytest.mark.parametrize(
    ("profile", "typed", "source"),
    [
        ("speedrun", "", "hf://karpathy/climbmix-400b-shuffle:train[:12000000]"),
        ("speedrun_d12", "", "hf://karpathy/climbmix-400b-shuffle:train[:3000000]"),
        ("speedrun", "pydocs", "pydocs"),
        ("speedrun_d4", "", "pydocs"),
        ("smoke", "", "pydocs"),
    ],
)
def test_recipe_names_its_text_unless_the_user_does(tmp_path, profile, typed, source):
    environ = {"SLIPWAY_STORE": str(tmp_path / "store"), "SLIPWAY_STATE_FILE": str(tmp_path / "journal.db")}
    settings = Settings.load(ROOT, {"profile": profile, "source": typed}, environ={**environ, "HOME": str(tmp_path)})
    wanted = PlannedWork.from_spec(WorkSpec(phase="base"), settings).training_request(settings)
    assert wanted.source == source
    text, base = (recipe(wanted)[step].spec for step in ("text", "base"))
    assert profile == "speedrun" and typed or passes_over(known_text_bytes(text), base) < 1
