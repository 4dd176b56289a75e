"""Checks of the file of a service before a start: `inv serve.up` and the linter refuse the same lines."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from serve import file_refusals, own_image, own_run, service
from serve.replicas import placement


def check(
    path: Path, given: Mapping[str, str], engine: str, model: str, typed: Collection[str], candidates: Sequence[str]
) -> None:
    """Raise UsageError with the lines of a file that a start refuses. Arguments as for `refusals_of`."""
    file_refusals.raise_all(str(path), refusals_of(path, given, engine, model, typed, candidates), path)


def refusals_of(
    path: Path,
    given: Mapping[str, str] = MappingProxyType({}),
    engine: str = "",
    model: str = "",
    typed: Collection[str] = (),
    candidates: Sequence[str] = (),
) -> list[str]:
    """Return the refusals of a file. Raises UsageError for a file that is not YAML.

    given: variables of the command line; engine and model: the flags. typed: keys of `resources` with a flag.
    candidates: the providers of the replicas; none for any provider that rents.
    """
    made, found = service.examine_file(path, given)
    is_own = own_run.is_wanted(made, engine, model, service.model_of(made))
    found += [*placement.refusals(made, typed), *placement.unread_refusals(made)]
    return [*found, *([*own_image.refusals(made, candidates), *own_run.refusals(made)] if is_own else ())]
