"""How many of the tokens that a phase has read its loss was computed over: refused when none, warned of when few.

In: the metrics.jsonl of a phase. Out: facts for its artifact.
"""

import logging
from pathlib import Path
from typing import Any

from data.events import emit
from trainer.errors import Refused
from trainer.reporting.jsonl_log import read
from trainer.reporting.metrics import last_loss, token_counts

log = logging.getLogger(__name__)
LEAST = 0.01  # share of a phase's tokens below which a loss over them is warned of


def about(metrics: Path) -> dict[str, Any]:
    """Return the last loss, over how many tokens it was computed, and the counts of conversations, where there are."""
    lines = read(metrics)
    tokens, learnt = token_counts(lines)
    counts = lines[0].get("conversations") if lines else None
    found = {"train_loss": last_loss(metrics), "read_tokens": tokens, "learnt_tokens": learnt}
    # not "conversations", which is a number in the results of the steps that make them
    return found | ({"talk_counts": counts} if counts else {})


def check(metrics: Path, phase: str) -> None:
    """Warn of a loss over hardly any of the tokens. Raises Refused for one over none of them."""
    tokens, learnt = token_counts(read(metrics))
    if not learnt:
        raise Refused(
            f"{phase}: its loss was computed over none of its {tokens:,} tokens, so the model has learnt nothing and "
            f"is not published; look at the targets of its data, and at {phase}.sequence_len"
        )
    if learnt < LEAST * tokens:
        share = f"{learnt:,} of its {tokens:,} tokens ({100 * learnt / tokens:.2f} %)"
        words = (
            f"{phase}: its loss was computed over {share}: most of what it read is question; shorten the questions, "
            "or check which messages are to be learnt"
        )
        log.warning("%s", words)
        emit("note", text=words, alarm=True)
