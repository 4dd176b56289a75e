"""The timeouts of processes for each other: longer until the first step is done, with slow work before the first
exchange.
"""

from datetime import timedelta

import pytest
import torch

from tests.trainer.checkpoints.test_checkpoint import training
from trainer import loop
from trainer.parallel.process_group import FIRST_TIMEOUT_S, STEP_TIMEOUT_S, Ranks, timeout_s


def test_exchanges_time_out_earlier_after_the_first_step(monkeypatch):
    set_to = []
    monkeypatch.setattr(
        torch.distributed.distributed_c10d, "_set_pg_timeout", lambda patience, group: set_to.append((group, patience))
    )
    monkeypatch.delenv("SLIPWAY_GROUP_TIMEOUT_S", raising=False)
    assert timeout_s(FIRST_TIMEOUT_S) == 600 > STEP_TIMEOUT_S
    Ranks(rank=1, size=2, quick="quick").shorten_timeout("cut")
    assert set_to == [(group, timedelta(seconds=STEP_TIMEOUT_S)) for group in (None, "quick", "cut")]
    Ranks().shorten_timeout()  # A single process waits for no other.
    assert len(set_to) == 3
    monkeypatch.setenv("SLIPWAY_GROUP_TIMEOUT_S", "7")
    assert timeout_s(FIRST_TIMEOUT_S) == timeout_s(STEP_TIMEOUT_S) == 7


@pytest.mark.slow
def test_slow_work_precedes_the_first_exchange_and_short_timeouts_follow_the_first_step(tmp_path, monkeypatch):
    order = []

    def noted(name, owner, attribute):
        before = getattr(owner, attribute)
        monkeypatch.setattr(owner, attribute, lambda *words, **more: order.append(name) or before(*words, **more))

    noted("metrics", loop, "Metrics")
    for method in ("broadcast", "all_gather", "sum_values", "broadcast_tensors", "all_reduce"):
        noted("exchange", Ranks, method)
    noted("step", loop.Optimizer, "step")
    noted("hurry", Ranks, "shorten_timeout")
    training(tmp_path, steps=3).run()
    assert order.index("metrics") < order.index("exchange") < order.index("step")
    assert order.count("hurry") == 1 and order.index("hurry") == order.index("step") + 1
