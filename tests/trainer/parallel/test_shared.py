"""A model with a sharded optimizer is freed after the last reference: several follow each other in one program."""

import weakref

import torch

from tests.trainer.model.test_model import LLAMA, random_model
from trainer.parallel.process_group import Ranks
from trainer.parallel.zero import shard_optimizer_state


def test_model_and_its_optimizer_shard_are_freed_with_the_last_reference():
    model = random_model(LLAMA)
    part = shard_optimizer_state(model, Ranks(0, 2))
    ids = torch.arange(8)[None]
    part.prepare_pass(model, is_last=False)
    model.loss(ids, ids).backward()
    held = [weakref.ref(model), weakref.ref(part), weakref.ref(model.head)]
    del model, part
    assert [one() for one in held] == [None] * 3
