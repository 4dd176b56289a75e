"""Custom phase: sft with label smoothing, which keeps the model from full certainty about an answer.

SLIPWAY_EXTENSIONS=examples/own/smooth.py ./inv launch --phase sft+smooth --set smooth.steps=20
"""

from torch.nn.functional import cross_entropy

from trainer.objectives import CrossEntropy
from trainer.phases.conversations import rows_of

PHASE = {"like": "sft", "follows": ["sft", "mid", "base"]}
SMOOTHING = 0.1


class Smoothed(CrossEntropy):
    """Cross entropy with label smoothing of 0.1; counts tokens as `CrossEntropy` does."""

    def loss(self, model, batch):
        hidden = model.hidden(batch["ids"], documents=batch.get("documents"), bounds=batch.get("bounds"))
        targets = batch["targets"].flatten()
        counted = (targets >= 0).nonzero().squeeze(1)  # Negative targets: questions and padding.
        logits = hidden.flatten(0, 1).index_select(0, counted).float() @ model.head.float().T
        return cross_entropy(logits, targets[counted], reduction="sum", label_smoothing=SMOOTHING), {}


def phase(run):
    """Train from the model of the previous phase and publish; `run` is a `PhaseRun` of trainer/run.py."""
    trained = run.train(run.initial_model(), rows_of(run), Smoothed())
    return run.publish(*trained, {"smoothing": SMOOTHING}) if trained else {}
