"""FineWeb and its kin on the Hugging Face hub: https://huggingface.co/datasets/HuggingFaceFW/fineweb.

Only the list of files comes from here; they are read by byte ranges like any other URL.
"""

import difflib
import fnmatch
import threading
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from data.config import form_of
from data.errors import DataError, InputError
from data.text.remote import Again, Patience, hub, token_headers


class Unlisted(InputError):
    """Our own reading of a card finds no file of the kinds that we read; `datasets` may know better."""

    def __init__(self, commit: str, words: str):
        super().__init__(words)
        self.commit = commit


PATIENCE_S = 6.0
INSTEAD = "type --source pydocs for text that needs no network"


def files(dataset: str, config: str, split: str, revision: str) -> tuple[str, list[str]]:
    """Return (commit, URLs of the files) of one split of one configuration, in the order of their names.

    Raises InputError for a data set, revision, configuration or split that is not there, DataError within seconds when
    the hub cannot be reached.
    """
    info = in_time(lambda: ask(dataset, revision))
    names = sorted(one.rfilename for one in info.siblings or () if form_of(one.rfilename)[0])
    configs = {one["config_name"]: one for one in _configs(info)}
    if configs:
        if config == "default" and config not in configs and len(configs) == 1:
            raise Unlisted(info.sha, f"{dataset} has no configuration 'default'; known: {', '.join(configs)}")
        known("configuration", config, configs, dataset)
        patterns = _patterns(configs[config], split, dataset)
    else:  # a data set without a description: all of it is one split
        known("split", split, ("train",), dataset)
        patterns = ["*"]
    names = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if not names:
        raise Unlisted(info.sha, f"source fineweb: {dataset} {config} {split}: no file matches {', '.join(patterns)}")
    return info.sha, [f"{hub()}/datasets/{dataset}/resolve/{info.sha}/{quote(name)}" for name in names]


def ask(dataset: str, revision: str) -> Any:
    """Return the hub's answer about a data set. Raises InputError, DataError."""
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    token = token_headers().get("authorization", "").removeprefix("Bearer ") or False
    found: list[Any] = []

    def ask() -> int:
        try:
            found.append(HfApi(endpoint=hub(), token=token).dataset_info(dataset, revision=revision, timeout=8.0))
            return 0
        except HfHubHTTPError as error:
            code = error.response.status_code
            if code in (429, 500, 502, 503, 504):
                said = error.response.headers.get("retry-after", "")
                raise Again(f"it answers {code}", float(said) if said.isdigit() else None) from error
            raise

    try:
        Patience(hub(), PATIENCE_S).ask(ask)
    except RevisionNotFoundError:
        raise InputError(f"source fineweb: {dataset} has no revision {revision!r}") from None
    except (RepositoryNotFoundError, HFValidationError):
        names = "HUGGINGFACEHUB_API_TOKEN, HF_TOKEN"
        mine = f"the token that is set ({names}) may not read it" if token else f"it asks for a token ({names})"
        why = f"there is no such data set, or {mine}"
        raise InputError(f"source fineweb: {hub()}/datasets/{dataset}: {why}") from None
    except (HfHubHTTPError, httpx2.HTTPError) as error:
        raise DataError(f"source fineweb: {hub()}: {str(error).splitlines()[0]}; {INSTEAD}") from None
    return found[0]


def in_time(ask: Any, patience_s: float = PATIENCE_S + 10) -> Any:
    """Return what `ask` returns. It runs in a thread, because a name look-up knows no time limit."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(ask())
        except Exception as error:  # any error is raised again below
            answer.append(error)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(patience_s)
    if not answer:
        raise DataError(f"source fineweb: {hub()} cannot be reached (no answer in {patience_s:.0f} s); {INSTEAD}")
    if isinstance(answer[0], DataError) and not isinstance(answer[0], InputError):
        raise DataError(f"source fineweb: {hub()} cannot be reached ({answer[0]}); {INSTEAD}")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _configs(info: Any) -> list[dict[str, Any]]:
    card = info.card_data
    return (card.to_dict().get("configs") if card else None) or []


def _patterns(config: dict[str, Any], split: str, dataset: str) -> list[str]:
    """Glob patterns of the files of a split; the hub writes them in one of four ways."""
    given = config.get("data_files", "*")
    if isinstance(given, (str, dict)):
        given = [given]
    splits: dict[str, list[str]] = {}
    for one in given:
        name, path = (one["split"], one["path"]) if isinstance(one, dict) else ("train", one)
        splits.setdefault(name, []).extend([path] if isinstance(path, str) else path)
    known("split", split, splits, dataset)
    return splits[split]


def known(what: str, asked: str, there: Iterable[str], dataset: str) -> None:
    """Raise InputError, with the nearest of those that are there, for a part that a data set has not."""
    names = list(there)
    if asked not in names:
        near = difflib.get_close_matches(asked, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:8])}"
        raise InputError(f"source fineweb: {dataset} has no {what} {asked!r}; {hint}")
