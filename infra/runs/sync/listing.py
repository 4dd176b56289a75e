"""Listing of the files on a pod by path patterns, with file sizes.

`listed` returns a `NamedSizes`. Each entry of the answer ends with NUL, which no file name can contain, so that a file
name cannot forge an entry.
"""

from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.sight import folder_of
from infra.runs.sync.fetched import MOST_FILES
from infra.transport.protocol import LIST, Transport
from store.untrusted_names import NamedSizes, read_listing

LIST_S = 30.0
LISTING_BYTES = 1 << 20
RESULTS = "work/checkpoints/*/step-*/MANIFEST.json work/runs/*/*.jsonl state/marks/*.json"


def listed(op: Op, transport: Transport, patterns: str) -> NamedSizes:
    """Return the files on the pod matching the patterns, by path in the pod's folder. Raises SlipwayError."""
    words = ["sh", "-c", LIST, "sh", str(folder_of(op).root), patterns, str(LISTING_BYTES)]
    done = transport.run(words, timeout_s=LIST_S)
    if done.exited != 0:
        raise SlipwayError(
            f"{op.run}: listing the files of the pod: {done.stderr.strip() or f'exit code {done.exited}'}"
        )
    return read_listing(done.stdout[: 2 * LISTING_BYTES], MOST_FILES)
