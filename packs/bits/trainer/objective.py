"""Training objective of ternary models: the rounding schedule, and the losses against a teacher.

Inputs are a model with ternary matrices, batches, a `BitsConfig` and, if configured, a teacher. The output is a summed
loss with figures: each part of the loss, and `rounded`, the progress toward fully rounded matrices (0 to 1). Sources:
Wu et al., arXiv 2510.13998 (BitDistill); the WrinkleFree recipes (stage 1.9, lambda warm-up, saliency).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from packs.bits.records.bits_config import BitsConfig
from packs.bits.trainer.distillation import layer_distance, layer_weights, relation_divergence
from packs.bits.trainer.ternary import layers_of
from trainer.errors import Refused
from trainer.model.attention import documents_mask, positions_in
from trainer.model.decoder import IGNORED, Decoder, Positions
from trainer.model.token_losses import Teacher, sliced_kl
from trainer.objectives import Batch
from trainer.objectives.passes import target_indices

SALIENCY_EVERY = 10  # steps between updates of the column statistics
SALIENCY_DECAY = 0.99


class Bits:
    """The objective of every training stage; `BitsConfig` describes the parts of the loss."""

    def __init__(self, config: BitsConfig, model: Decoder, teacher: Decoder | None = None) -> None:
        """Create the objective of a phase. Raises Refused for a teacher with an incompatible shape."""
        self.config, self.teacher = config, teacher
        self.matrices = layers_of(model)
        device = model.head.device
        self.share = torch.ones((), device=device)  # progress toward fully rounded matrices, 0 to 1
        self.layers = torch.zeros((), device=device)  # current weight of the layer distance
        self.largest: dict[str, Tensor] = {}  # running maximum of each column, by matrix
        count = model.config.num_hidden_layers
        self.weights = layer_weights(config.layer_weights, count)
        self.relation_layer = config.layer_of(count) if config.relations else None
        if teacher is not None:
            _compare(config, model, teacher)
        for one in self.matrices.values():
            one.share = self.share if config.warmup_steps else None

    def loss_divisor(self, batch: Batch) -> float:
        return float((batch["targets"] != IGNORED).sum())

    def set_step(self, step: int, steps: int) -> None:
        config = self.config
        if config.warmup_steps:
            progress = min(1.0, step / config.warmup_steps)
            self.share.fill_(progress if config.warmup == "linear" else (1 - math.cos(math.pi * progress)) / 2)
        self.layers.fill_(config.layers * (1 + math.cos(math.pi * step / steps)) / 2)
        if config.saliency:
            self._choose_columns(step, steps)

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        ids, targets, documents = batch["ids"], batch["targets"], batch.get("documents")
        bounds = batch.get("bounds")
        counted = targets != IGNORED  # (B, T)
        figures = {"rounded": self.share * counted.sum()} if self.matrices else {}
        if self.teacher is None:
            loss = model.loss(ids, targets, documents, bounds, batch.get("counted"))
            return loss, figures
        teacher, config = self.teacher, self.config
        through = [*range(1, len(self.weights) + 1)] if config.layers else []
        capture = through if self.relation_layer is None else [*through, self.relation_layer]
        at = _placed(model, ids, documents, bounds)
        with torch.no_grad():
            at_theirs = _placed(teacher, ids, documents, bounds)
            theirs, seen_theirs = _seen(teacher, ids, at_theirs, capture)
        ours, seen = _seen(model, ids, at, capture)
        index = target_indices(batch)
        other = Teacher(theirs.flatten(0, 1)[index], teacher.head, teacher.shape.softcap)
        squared = config.temperature**2 if config.squared else 1.0
        parts = torch.stack([(1 - self.layers) * config.nats, (1 - self.layers) * config.divergence * squared])
        loss, nats, divergence = sliced_kl(
            ours.flatten(0, 1)[index],
            model.head,
            targets.flatten()[index],
            other,
            parts,
            config.temperature,
            model.shape.softcap,
        )
        figures |= {"nats": nats, "divergence": divergence}
        if config.layers:
            flat = [[one.flatten(0, 1) for one in states[: len(through)]] for states in (seen, seen_theirs)]
            distance = layer_distance(flat[0], flat[1], self.weights, index)
            loss = loss + self.layers * distance
            figures["layers"] = distance.detach()
        if self.relation_layer is not None:
            unseen = _unseen(ids, documents)
            block, frozen = (one.blocks[self.relation_layer] for one in (model, teacher))
            with torch.no_grad():
                wanted = frozen.project_qkv(seen_theirs[-1], at_theirs)
            found = block.project_qkv(seen[-1], at)
            pairs = zip(found, wanted, strict=True)
            each = (relation_divergence(a, b, config.relation_heads, unseen, counted) for a, b in pairs)
            related = sum(each, loss.new_zeros(()))
            loss = loss + config.relations * related
            figures["relations"] = related.detach()
        return loss, figures

    def _choose_columns(self, step: int, steps: int) -> None:
        """Select the columns of each matrix to leave unrounded in this step: the largest running maxima."""
        rest = max(1, steps - self.config.saliency_warmup)
        progress = min(1.0, max(0, step - self.config.saliency_warmup) / rest)
        share = self.config.saliency * (1 + math.cos(math.pi * progress)) / 2
        for name, one in self.matrices.items():
            if step % SALIENCY_EVERY == 0:
                now = one.weight.detach().abs().amax(dim=0)
                now = now.full_tensor() if hasattr(now, "full_tensor") else now  # a sharded matrix
                self.largest[name] = self.largest[name].lerp(now, 1 - SALIENCY_DECAY) if name in self.largest else now
            largest = self.largest[name]
            chosen = max(1, int(share * len(largest))) if share > 0 else 0
            least = largest.topk(chosen).values[-1] if chosen else largest.new_tensor(math.inf)
            if one.exact is None:
                one.exact = torch.zeros_like(largest, dtype=torch.bool)
            torch.ge(largest, least, out=one.exact)

    def state(self) -> dict[str, Tensor]:
        """Return the running column maxima, which a checkpoint must store because the step does not determine them."""
        return dict(self.largest)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the output of `state()`."""
        self.largest = {name: one.to(self.share.device) for name, one in state.items()}


def _compare(config: BitsConfig, model: Decoder, teacher: Decoder) -> None:
    ours, theirs = model.config, teacher.config
    needs = ["vocab_size"]
    needs += ["num_hidden_layers", "hidden_size"] if config.layers else []
    needs += ["num_hidden_layers"] if config.relations else []
    for name in needs:
        if getattr(ours, name) != getattr(theirs, name):
            raise Refused(
                f"the teacher's {name} is {getattr(theirs, name)}, but the student's is {getattr(ours, name)}"
            )
    shape = (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim, theirs.num_hidden_layers)
    if problem := config.problem(*shape):
        raise Refused(f"the teacher: {problem}")


def _placed(model: Decoder, ids: Tensor, documents: Tensor | None, bounds: Tensor | None) -> Positions:
    if documents is None:
        return model.positions(torch.arange(ids.shape[1], device=ids.device)[None], is_causal=True)
    return model.positions(positions_in(documents), documents_mask(documents, ids.is_cuda, bounds), is_causal=True)


def _unseen(ids: Tensor, documents: Tensor | None) -> Tensor:
    """Return bool (T, T) or (B, T, T), True where a query token (row) cannot attend to a key token (column)."""
    if documents is not None:
        return ~documents_mask(documents, flex=False)[:, 0]
    return torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).triu_(1)


def _seen(model: Decoder, ids: Tensor, at: Positions, capture: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Return the last hidden states (B, T, d), and the inputs of the layers in `capture`."""
    found = model.hidden(ids, at=at, capture=capture)
    return found if capture else (found, [])
