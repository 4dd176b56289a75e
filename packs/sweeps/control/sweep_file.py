"""Parser of sweep files: named runs and combinations of values become arms, each with every seed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.specs import files, work
from flows.specs.launch import LaunchSpec
from flows.specs.work import filled
from infra import strict_yaml
from infra.errors import UsageError
from infra.names import check_name
from infra.settings import read_overrides
from packs.sweeps.control.axes import combined
from packs.sweeps.control.experiment import not_of_a_trial, slug
from packs.sweeps.control.trials.ranking import Ranking
from packs.sweeps.control.trials.records import EarlyStop, SweepSpec, SweepTrial, check_arms

KEYS = {
    "name": "name of the sweep, the prefix of the names of the runs (default: name of the file)",
    "about": "the question, shown on the page",
    "each": "flags for all runs",
    "runs": "arms, each with a name and flags",
    "axes": "values of flags or of PHASE.FIELD, as lists or ranges; each combination is an arm",
    "sample": "run only this many combinations, chosen at random",
    "seeds": "random seeds; each arm runs once per seed",
    "pods": "number of pods at once",
    "rank": "ranking of the arms: `by`, a figure such as loss; `mode`, min or max; `last`, the share of "
    "the last steps in the mean",
    "beside": "further figures to show: perplexity, tokens_per_s",
    "early_stop": "stop arms that are behind: `first`, the share of the steps before the first comparison; "
    "`factor`, of this many arms one continues. true: the defaults",
    "against": "arm that all other arms are compared with (default: the best arm)",
    "spend_limit": "rented: US dollars for all runs together",
    "hours": "rented: shortest and longest time of a run, as published, such as [4, 6]; shown with the price",
}
ENV = "env"  # environment variables of a run's job, beside the flags


def load(path: Path) -> SweepSpec:
    """Load the sweep of a file. Raises UsageError with the location."""
    try:
        document = strict_yaml.read(path)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return read(str(path), document, path.stem)


def read(where: str, document: Any, stem: str) -> SweepSpec:
    """Parse a sweep document; `where` names the document in errors, `stem` is the default name. Raises UsageError."""
    files.check_keys(where, document, list(KEYS))
    name = check_name(document.get("name") if isinstance(document.get("name"), str) else slug(stem))
    arms = dict(_arms(where, document, Path(where).absolute().parent))
    seeds = document.get("seeds", [])
    if not isinstance(seeds, list) or not all(type(one) is int for one in seeds) or len(set(seeds)) < len(seeds):
        raise UsageError(f"{where}: seeds is {seeds!r}; expected whole numbers, such as [1, 2, 3]")
    trials: dict[str, SweepTrial] = {}
    for seed in seeds or [None]:  # Order by seed first, for comparisons of arms as early as possible.
        for arm, (values, env, asked) in arms.items():
            if seed is not None and "seed" in values:
                raise UsageError(f"{where}: {arm}: `seed` and `seeds` are both set; give one of them")
            run = check_name(f"{name}.{arm}" + ("" if seed is None else f"-seed-{seed}"))
            spec = filled(LaunchSpec(), {"tag": run, **values, **({} if seed is None else {"seed": seed})})
            trials[run] = SweepTrial(run=run, arm=arm, spec=spec, env=env, asked=asked)
    early = document.get("early_stop")
    return check_arms(
        where,
        SweepSpec(
            name=name,
            trials=trials,
            about=str(document.get("about", "")),
            num_pods=_number_of_pods(where, document.get("pods")),
            rank=_record(f"{where}: rank", document.get("rank", {}), Ranking),
            beside=_names(f"{where}: beside", document.get("beside", [])),
            early_stop=_record(f"{where}: early_stop", {} if early is True else early, EarlyStop) if early else None,
            against=str(document.get("against", "")),
            spend_limit=str(document.get("spend_limit", "")),
            hours=_hours(where, document.get("hours", [0, 0])),
        ),
    )


Arm = tuple[dict[str, Any], Mapping[str, str], dict[str, str]]  # launch values, variables, distinguishing settings


def _arms(where: str, document: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Arm]]:
    """Yield the arms by name. Raises UsageError for a duplicate name, or for a document without arms."""
    each = _entry(f"{where}: each", document.get("each") or {}, folder)
    entries, sample = document.get("runs") or [], document.get("sample")
    if not isinstance(entries, list) or not (entries or document.get("axes")):
        raise UsageError(f"{where}: `runs` must be a list with at least one run, or `axes` must list values to combine")
    if sample is not None and (type(sample) is not int or sample < 1):
        raise UsageError(f"{where}: sample is {sample!r}; expected a whole number from 1")
    named: list[tuple[str, str, dict[str, Any]]] = []
    for number, entry in enumerate(entries, 1):
        here = f"{where}: run {number}"
        if not isinstance(entry, Mapping):
            raise UsageError(f"{here}: expected lines of the form `key: value`")
        if not isinstance(entry.get("name"), str):
            raise UsageError(f"{here}: name is missing; give a name, as text")
        named.append((here, check_name(entry["name"]), {key: entry[key] for key in entry if key != "name"}))
    for name, entry in combined(f"{where}: axes", document.get("axes") or {}, sample):
        named.append((f"{where}: axes: {name}", check_name(name), entry))
    seen: set[str] = set()
    for here, name, entry in named:
        if name in seen:
            raise UsageError(f"{here}: two runs have the name {name}")
        seen.add(name)
        own, env = _entry(here, entry, folder)
        options = work.read_options([*each[0].get("options", ()), *own.get("options", ())])
        yield name, ({**each[0], **own, "options": options}, {**each[1], **env}, _asked(entry))


def _entry(where: str, entry: Any, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return an entry's launch values and job variables. Raises UsageError."""
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    env = entry.get(ENV, {})
    if not isinstance(env, Mapping) or not all(isinstance(one, (str, int, float)) for one in env.values()):
        raise UsageError(f"{where}: env: expected variables, such as `env: {{WANDB_PROJECT: rates}}`")
    variables = {str(name): str(value) for name, value in env.items()}
    try:
        read_overrides([f"{name}={value}" for name, value in variables.items()], {})
    except UsageError as error:
        raise UsageError(f"{where}: env: {error}") from None
    values = {key: value for key, value in entry.items() if key != ENV}
    for key in ("profile", "persona", "task", "reward"):  # the file may be beside the sweep file
        said = values.get(key)
        if isinstance(said, str) and Path(said).suffix and (beside := folder / said).is_file():
            values[key] = str(beside)
    return files.read(where, values, LaunchSpec, not_of_a_trial()), variables


def _asked(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of an entry by name; nested names are joined with dots."""
    found: dict[str, str] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            inner = _asked(value)
            found |= {name if key == files.PHASES else f"{key}.{name}": text for name, text in inner.items()}
        else:
            found[str(key)] = str(value)
    return found


def _number_of_pods(where: str, said: Any) -> int | None:
    if said is not None and (type(said) is not int or said < 1):
        raise UsageError(f"{where}: pods is {said!r}; expected a whole number from 1")
    return said


def _hours(where: str, said: Any) -> tuple[float, float]:
    is_pair = isinstance(said, list) and len(said) == 2 and all(type(one) in (int, float) for one in said)
    if not is_pair or not 0 <= said[0] <= said[1]:
        raise UsageError(f"{where}: hours is {said!r}; expected the shortest and the longest time, such as [4, 6]")
    return float(said[0]), float(said[1])


def _names(where: str, said: Any) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        raise UsageError(f"{where} is {said!r}; expected names of figures, such as [perplexity, tokens_per_s]")
    return tuple(said)


def _record(where: str, said: Any, record: type) -> Any:
    """Parse a section into a record. Raises UsageError for unknown names and invalid values."""
    wanted = record.__dataclass_fields__  # type: ignore[attr-defined]
    files.check_keys(where, said, list(wanted))
    for key, value in said.items():
        kind = type(wanted[key].default)
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UsageError(f"{where}: {key} is {value!r}; it must be {files.WANTED[kind]}")
    try:
        return record(**said)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
