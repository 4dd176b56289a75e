"""Custom tracker: append the loss of each step to a CSV file.

./inv launch --phase sft --track examples/tracker.py
"""


class Table:
    link = "work/tracking/tracker/losses.csv"  # `inv status` shows this path to the user.

    def __init__(self, folder):
        self.path = folder / "losses.csv"

    def tell(self, phase, figures):
        """Write the metrics of a step. `figures`: a line of metrics.jsonl: step, loss, lr, tokens, tokens_per_s..."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{phase},{figures['step']},{figures['loss']:.4f}\n")


def tracker(run, folder, configs):
    """Return a tracker. `run`: name; `folder`: for files, on the pod; `configs`: configuration of each phase."""
    return Table(folder)
