"""FineWeb and similar data sets on the hub: https://huggingface.co/datasets/HuggingFaceFW/fineweb.

This module only lists the files; `remote.py` reads them by byte ranges like any other URL.
"""

import difflib
import fnmatch
import threading
import time
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from data.config import form_of
from data.errors import DataError, HubSilent, InputError, NotThere
from data.text.remote import ReadPatience, RetryableRead, hub, token_headers


class NoReadableFiles(InputError):
    """The data set card lists no file in a format that Slipway reads; `datasets` may find files."""

    def __init__(self, commit: str, words: str):
        super().__init__(words)
        self.commit = commit


PATIENCE_S = 10.0
SLOW_ANSWER_S = 10.0  # extra time for a hub that has responded once
INSTEAD = "type --source pydocs for text that needs no network"


def files(dataset: str, config: str, split: str, revision: str) -> tuple[str, list[str]]:
    """Return (commit, file URLs) of a split of a configuration, in the order of file names.

    Raises InputError for an unknown configuration or split, and errors of `info_of`.
    """
    info = info_of(dataset, revision)
    names = sorted(one.rfilename for one in info.siblings or () if form_of(one.rfilename)[0])
    configs = {one["config_name"]: one for one in _configs(info)}
    if configs:
        if config == "default" and config not in configs and len(configs) == 1:
            raise NoReadableFiles(info.sha, f"{dataset} has no configuration 'default'; known: {', '.join(configs)}")
        require_known("configuration", config, configs, dataset)
        patterns = _patterns(configs[config], split, dataset)
    else:  # without a description, all files form a single split
        require_known("split", split, ("train",), dataset)
        patterns = ["*"]
    names = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if not names:
        raise NoReadableFiles(
            info.sha, f"source fineweb: {dataset} {config} {split}: no file matches {', '.join(patterns)}"
        )
    return info.sha, [f"{hub()}/datasets/{dataset}/resolve/{info.sha}/{quote(name)}" for name in names]


def info_of(dataset: str, revision: str) -> Any:
    """Return the hub's description of a data set.

    Raises NotThere for a response of 401, 403 or 404, DataError for any other error response, HubSilent without a
    response within PATIENCE_S seconds.
    """
    answer: list[Any] = []
    heard = threading.Event()

    def run() -> None:
        try:
            answer.append(_ask(dataset, revision, heard))
        except Exception as error:  # raised again below
            answer.append(error)

    asking = threading.Thread(target=run, daemon=True)  # a thread, because DNS lookups have no timeout
    asking.start()
    asking.join(PATIENCE_S + 1)
    if not answer and heard.is_set():
        asking.join(SLOW_ANSWER_S)
    if not answer:
        kind, seen = (DataError, "is too slow") if heard.is_set() else (HubSilent, "cannot be reached")
        raise kind(f"source fineweb: {hub()} {seen}; {INSTEAD}")
    if isinstance(answer[0], Exception):
        raise answer[0]
    return answer[0]


def _ask(dataset: str, revision: str, heard: threading.Event) -> Any:
    import httpx2
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    from store.patience import asked_wait_s

    token = token_headers().get("authorization", "").removeprefix("Bearer ") or False
    patience = ReadPatience(hub(), PATIENCE_S, PATIENCE_S)
    found: list[Any] = []
    client = get_session()
    client.event_hooks = {**client.event_hooks, "response": [*client.event_hooks["response"], lambda _: heard.set()]}

    def ask() -> int:
        left_s = max(1.0, patience.deadline - time.monotonic())
        try:
            found.append(
                HfApi(endpoint=hub(), token=token).dataset_info(dataset, revision=revision, timeout=min(8.0, left_s))
            )
            return 0
        except HfHubHTTPError as error:
            code = error.response.status_code
            if code in (429, 500, 502, 503, 504):
                raise RetryableRead(f"it answers {code}", asked_wait_s(error.response.headers)) from error
            raise

    try:
        patience.retry(ask)
    except RevisionNotFoundError:
        raise NotThere(f"source fineweb: {dataset} has no revision {revision!r}") from None
    except HFValidationError:
        raise InputError(f"source fineweb: {dataset!r} is no such data set; expected user/name") from None
    except RepositoryNotFoundError:
        names = "HUGGINGFACEHUB_API_TOKEN, HF_TOKEN"
        mine = f"the token in {names} has no access" if token else f"it asks for a token ({names})"
        why = f"no such data set, or {mine}"
        raise NotThere(f"source fineweb: {hub()}/datasets/{dataset}: {why}") from None
    except (HfHubHTTPError, httpx2.HTTPError) as error:
        raise DataError(f"source fineweb: {hub()}: {str(error).splitlines()[0]}; {INSTEAD}") from None
    except (DataError, OfflineModeIsEnabled) as error:  # no response, or repeated errors
        kind = DataError if heard.is_set() else HubSilent
        said = str(error).splitlines()[0] if isinstance(error, DataError) else "HF_HUB_OFFLINE is set"
        seen = "gives no answer of use" if heard.is_set() else "cannot be reached"
        raise kind(f"source fineweb: {hub()} {seen} ({said}); {INSTEAD}") from None
    return found[0]


def _configs(info: Any) -> list[dict[str, Any]]:
    card = info.card_data
    return (card.to_dict().get("configs") if card else None) or []


def _patterns(config: dict[str, Any], split: str, dataset: str) -> list[str]:
    """Return the glob patterns of the files of a split, from any of the four forms used on the hub."""
    given = config.get("data_files", "*")
    if isinstance(given, (str, dict)):
        given = [given]
    splits: dict[str, list[str]] = {}
    for one in given:
        name, path = (one["split"], one["path"]) if isinstance(one, dict) else ("train", one)
        splits.setdefault(name, []).extend([path] if isinstance(path, str) else path)
    require_known("split", split, splits, dataset)
    return splits[split]


def require_known(what: str, asked: str, there: Iterable[str], dataset: str) -> None:
    """Raise InputError for a name missing from `there`, with the nearest known name."""
    names = list(there)
    if asked not in names:
        near = difflib.get_close_matches(asked, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names[:8])}"
        raise InputError(f"source fineweb: {dataset} has no {what} {asked!r}; {hint}")
