"""A phase of your own: sft with smoothed labels, so that no answer is learned with full certainty.

SLIPWAY_EXTENSIONS=examples/own/smooth.py ./inv launch --phase sft+smooth --set smooth.steps=20
"""

from torch.nn.functional import cross_entropy

from trainer.objectives import CrossEntropy
from trainer.phases.conversations import rows_of

PHASE = {"like": "sft", "follows": ["sft", "mid", "base"]}
SMOOTHING = 0.1


class Smoothed(CrossEntropy):
    """Cross entropy against labels that leave a tenth for all other tokens; it counts tokens as ours does."""

    def loss(self, model, batch):
        hidden = model.hidden(batch["ids"], documents=batch.get("documents"), bounds=batch.get("bounds"))
        targets = batch["targets"].flatten()
        counted = (targets >= 0).nonzero().squeeze(1)  # the others are questions, and what fills rows up
        logits = hidden.flatten(0, 1).index_select(0, counted).float() @ model.head.float().T
        return cross_entropy(logits, targets[counted], reduction="sum", label_smoothing=SMOOTHING), {}


def phase(run):
    """Train from the model of the phase before, and publish; `run` is a PhaseRun of trainer/run.py."""
    trained = run.train(run.first_model(), rows_of(run), Smoothed())
    return run.publish(*trained, {"smoothing": SMOOTHING}) if trained else {}
