"""A model with windows, value embeddings, smear and backout has the losses of one process when sharded over two."""

from dataclasses import replace

import pytest

from packs.speedrun.records.recipes import MUON
from tests.trainer.parallel.test_fsdp import ODD, config, run
from trainer.config import OptimizerConfig
from trainer.records.model_config import NanochatParts

pytestmark = [pytest.mark.process, pytest.mark.nightly]

WHOLE = NanochatParts(windows="SL", window=4, value_channels=6, smear_channels=8, scales=True, backout=True)
MODEL = replace(ODD, embed_norm=True, tie_word_embeddings=False, logit_softcap=15.0, nanochat=WHOLE)


def test_two_processes_train_like_one(tmp_path):
    optimizer = OptimizerConfig(lr=0.01, muon_lr=0.02, value_lr=0.02, scale_lr=0.1, muon=MUON)
    one = config(model=MODEL, steps=5, optimizer=optimizer)
    alone = run(tmp_path / "one", one, 1)
    for parallel in ("ddp", "fsdp"):
        assert run(tmp_path / parallel, one, 2, parallel) == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == 5
