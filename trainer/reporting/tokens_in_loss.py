"""Check of the share of tokens in the loss of a phase: an error for no tokens, a warning for few.

The functions read the metrics.jsonl of a phase and return facts for the phase's artifact.
"""

import logging
from pathlib import Path
from typing import Any

from data.events import emit
from trainer.errors import Refused
from trainer.reporting.jsonl_log import read
from trainer.reporting.metrics import last_loss, token_counts

log = logging.getLogger(__name__)
LEAST = 0.01  # warn below this share of a phase's tokens in the loss


def about(metrics: Path) -> dict[str, Any]:
    """Return the last loss, the numbers of read and learnt tokens, and the conversation counts if present."""
    lines = read(metrics)
    tokens, learnt = token_counts(lines)
    counts = lines[0].get("conversations") if lines else None
    found = {"train_loss": last_loss(metrics), "read_tokens": tokens, "learnt_tokens": learnt}
    # The key is not "conversations", which is a number in the results of the data steps.
    return found | ({"talk_counts": counts} if counts else {})


def check(metrics: Path, phase: str) -> None:
    """Emit a warning for a loss over few of the tokens. Raises Refused for a loss over no tokens."""
    tokens, learnt = token_counts(read(metrics))
    if not learnt:
        raise Refused(
            f"{phase}: the loss covered none of the {tokens:,} tokens, so the model did not train and "
            f"is not published. Check the targets in the data, and {phase}.sequence_len"
        )
    if learnt < LEAST * tokens:
        share = f"{learnt:,} of {tokens:,} tokens ({100 * learnt / tokens:.2f} %)"
        words = (
            f"{phase}: the loss covered only {share}, because questions make up most of the data. Shorten the "
            "questions, or check the weights of the messages"
        )
        log.warning("%s", words)
        emit("note", text=words, alarm=True)
