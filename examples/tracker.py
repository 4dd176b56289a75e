"""A tracker of one's own: it writes each step's loss to a table. `inv launch --phase sft --track examples/tracker.py`."""


class Table:
    link = "work/tracking/tracker/losses.csv"  # where people find it; `inv status` shows that

    def __init__(self, folder):
        self.file = open(folder / "losses.csv", "a", buffering=1, encoding="utf-8")

    def tell(self, phase, figures):
        """Get one line of metrics.jsonl: step, loss, lr, tokens, tokens_per_s, ... Each step comes once."""
        self.file.write(f"{phase},{figures['step']},{figures['loss']:.4f}\n")

    def close(self):
        self.file.close()


def tracker(run, folder, configs):
    """`run`: its name; `folder`: to keep files in, on the pod; `configs`: what each phase was configured with."""
    return Table(folder)
