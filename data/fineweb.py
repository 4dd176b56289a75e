"""FineWeb, streamed from the Hugging Face hub: https://huggingface.co/datasets/HuggingFaceFW/fineweb."""

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

from data.documents import Document
from data.errors import DataError

NAME, PART = "HuggingFaceFW/fineweb", "sample-10BT"
PATIENCE_S = 8.0
INSTEAD = "type --source pydocs for text that needs no network"


def documents() -> Iterator[Document]:
    """The documents of FineWeb's 10-billion-token sample, in its order.

    Raises DataError within seconds when the hub cannot be reached.
    """
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    problem = _unreachable(f"{hub}/api/datasets/{NAME}", PATIENCE_S)
    if problem:
        raise DataError(f"source fineweb: {hub} cannot be reached ({problem}); {INSTEAD}")
    try:
        import datasets
    except ImportError:
        raise DataError(f"source fineweb needs the package datasets, which is not installed; {INSTEAD}") from None
    try:
        rows = datasets.load_dataset(NAME, PART, split="train", streaming=True).select_columns(["text", "id", "url"])
        for row in rows:
            yield Document(row["text"], id=row["id"], url=row["url"], language="en")
    except (OSError, ValueError, RuntimeError) as error:  # what the hub's clients raise when the stream breaks
        raise DataError(f"source fineweb: {str(error).splitlines()[0]}; {INSTEAD}") from error


def _unreachable(url: str, patience_s: float) -> str:
    """Why `url` gives no answer, or "". In a thread, because a name look-up knows no time limit."""
    answer = [f"no answer in {patience_s:.0f} s"]

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=patience_s):
                answer[0] = ""
        except urllib.error.HTTPError as error:
            answer[0] = f"it answers {error.code}"
        except OSError as error:
            answer[0] = str(getattr(error, "reason", error))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(patience_s)
    return answer[0]
