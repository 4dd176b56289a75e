"""The kinds of work of a launch: phases of ours, and what packs add, such as commands of the user's own.

    flags, file -> asked -> AskedWork: placed -> variables -> applied -> understand -> ResolvedLaunch

A kind of a pack is loaded where a line has one of the flags that its pack adds, or a file has one of its keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flows.runs import launch
from flows.specs import variables, work_files
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.flags import Typed, given
from infra.runs.timing import Say
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from store import packs

S = TypeVar("S", bound=LaunchSpec)


class AskedWork:
    """The work that a line asks for: phases of ours, where no kind of a pack says otherwise."""

    def placed(self, spec: S) -> S:
        """Return the launch with the provider that the work names, where none was typed. Raises UsageError."""
        return spec

    def variables(self, settings: Settings) -> Mapping[str, str]:
        """Return variables that count as typed from here on, as those of `--env`. Raises UsageError."""
        return {}

    def applied(self, spec: S, settings: Settings, tell: Say) -> S:
        """Return the launch with what the work and the typed variables say of its flags. Raises UsageError."""
        return variables.applied(spec, settings.given)

    def understand(self, spec: LaunchSpec, settings: Settings) -> launch.ResolvedLaunch:
        """Return the resolved launch. Raises UsageError for an impossible one."""
        return launch.understand(spec, settings)


@dataclass(frozen=True, kw_only=True)
class EstimatedWork:
    """Phases and a machine whose cost is estimated by another word than `--phase`."""

    words: str
    spec: LaunchSpec
    machine: MachineSpec


@dataclass(frozen=True)
class FileFinding:
    """A line of a file that goes wrong later, and how to correct it."""

    line: int
    text: str


class WorkKind:
    """A kind of work of a pack."""

    def asked(self, spec: LaunchSpec, file: str) -> AskedWork | None:
        """Return the work of a line; None where the line asks for phases. Raises UsageError.

        file: the path of a file of this kind; "" = none was given.
        """
        return None

    def cost_variables(self, spec: Typed, profile: str) -> Mapping[str, str]:
        """Return variables that the flags of `inv cost` say in other words."""
        return {}

    def estimated(self, spec: Typed, wanted: LaunchSpec, settings: Settings) -> EstimatedWork | None:
        """Return the work that the pack's flags of `inv cost` name; None where they name none. Raises UsageError.

        wanted: the launch as far as the flags of the core say.
        """
        return None

    def file_variables(self, path: Path) -> Mapping[str, str | None]:
        """Return the variables of a file of this kind; None = no value, and `***` for a secret. Raises UsageError."""
        return {}

    def findings(self, path: Path) -> Sequence[FileFinding]:
        """Return what goes wrong later in a file. Raises UsageError for a file of another kind; OSError."""
        return ()


def asked(spec: LaunchSpec, file: str) -> AskedWork:
    """Return the work of a line. Raises UsageError."""
    kind = of_file(Path(file)) if file else None
    works = [kind.asked(spec, file)] if kind else [one.asked(spec, "") for one in _of_flags(spec)]
    return next(filter(None, works), AskedWork())


def of_file(path: Path) -> WorkKind | None:
    """Return the kind of a YAML file; None for another file, and for one that cannot be opened.

    Raises UsageError for a file of a pack that is not there.
    """
    entry = work_files.kind(path)
    return packs.load(entry.where)() if entry else None


def _of_flags(spec: Typed) -> list[WorkKind]:
    """Return the kinds of the packs whose flags were given. The record of the flags of a pack lies in its folder."""
    names = {type(one).__module__.split(".")[1] for one in spec.added if given(one)}
    return [packs.load(entry.where)() for name in sorted(names) for entry in packs.installed()[name].works.values()]


def cost_variables(spec: Typed, profile: str) -> dict[str, str]:
    """Return what `WorkKind.cost_variables` does, of all kinds whose flags were given."""
    return {name: value for kind in _of_flags(spec) for name, value in kind.cost_variables(spec, profile).items()}


def estimated(spec: Typed, wanted: LaunchSpec, settings: Settings) -> EstimatedWork | None:
    """Return the work that flags of packs name for `inv cost`; None where they name none. Raises UsageError."""
    return next((found for kind in _of_flags(spec) if (found := kind.estimated(spec, wanted, settings))), None)


def findings(path: Path) -> list[FileFinding]:
    """Return what goes wrong later in a file of any kind. Raises UsageError for a file of none; OSError."""
    if missing := [why for word in packs.words("works") if (why := packs.lacking("works", word))]:
        raise UsageError(missing[0])
    kind = of_file(path)
    kinds = [kind] if kind else [packs.load(entry.where)() for entry in packs.works()]
    return [one for each in kinds for one in each.findings(path)]
