"""Tab completion of values: names of phases, profiles, providers, GPU kinds, runs and models.

Reads files of this machine only, so that a key press waits for no vendor and no remote store.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from infra.errors import SlipwayError
from infra.market import gpus
from infra.providers import by_name
from infra.runs.run_rows import live_by_run
from infra.settings import MARKET
from scripts.cli import context
from store import credentials, packs
from store.manifest import StoreError
from trainer.recipes import PROFILES
from trainer.records.phase_registry import PHASES

JOINED = {"phase": "+", "gpu": ",", "track": ","}  # flags that take several values in one word


def values(flag: str, current: str, before: Sequence[str]) -> list[str]:
    """Return the values of a flag that complete the partial word `current`; [] for a flag without known values.

    flag: name of the flag's field. before: the earlier words of the line, which may name a rehearsal.
    """
    found = FLAGS.get(flag)
    if found is None:
        return []
    head, joint, _ = current.rpartition(JOINED[flag]) if flag in JOINED else ("", "", "")
    with contextlib.suppress(SlipwayError, StoreError, OSError):  # an error must not disturb the line
        if "--rehearse" in before:
            from scripts.cli import rehearsal_world

            rehearsal_world.enter()
        return [one for one in sorted({f"{head}{joint}{value}" for value in found()}) if one.startswith(current)]
    return []


def _providers() -> Iterator[str]:
    yield from (*by_name.known_providers(), MARKET)


def _gpu_kinds() -> Iterator[str]:
    yield from gpus.TFLOPS
    yield from (one.name for one in gpus.GPUS)


def _runs() -> Iterator[str]:
    yield from live_by_run(context.settings().state_file)


def _checkpoints() -> Iterator[tuple[str, str]]:
    """Yield folder and tag of each named checkpoint of a store on this machine."""
    store = context.settings().store
    if credentials.kind(store) in ("", "file"):
        for one in Path(store.removeprefix("file://")).glob("*_checkpoints/*"):
            yield one.parent.name, one.name


def _models() -> Iterator[str]:
    """Yield the names of models: phases with a checkpoint, tags, and whole names."""
    folders = {one.folder: name for name, one in PHASES.items()}
    for folder, tag in _checkpoints():
        yield from (f"{folder}/{tag}", tag, *filter(None, [folders.get(folder)]))


FLAGS: Mapping[str, Callable[[], Iterator[str]]] = {
    "phase": lambda: iter((*PHASES, "all")),
    "profile": lambda: iter(PROFILES),
    "provider": _providers,
    "gpu": _gpu_kinds,
    "accelerators": _gpu_kinds,
    "track": lambda: iter(packs.words("trackers")),
    "tag": lambda: (tag for _, tag in _checkpoints()),
    **dict.fromkeys(("model", "models"), _models),
    **dict.fromkeys(("run", "pods", "what"), _runs),
}
