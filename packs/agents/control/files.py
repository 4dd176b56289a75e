"""Files of allowances beside the journal: the allowance, and the runs that the allowance has started.

<journal>-allowances/<name>.json          the allowance, with a hash of the token
<journal>-allowances/<name>.runs          names of runs and services, their machines, and the limits of services
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from infra.errors import SlipwayError, UsageError
from infra.settings import Settings
from packs.agents.control.place import folder
from packs.agents.records.allowance import NAME, Allowance, from_json
from store import local_files, untrusted_input


def save(one: Allowance, settings: Settings) -> None:
    """Write an allowance, readable by the owner only."""
    folder(settings).mkdir(parents=True, exist_ok=True, mode=0o711)
    local_files.replace(folder(settings) / f"{one.name}.json", json.dumps(asdict(one), indent=1).encode(), 0o600)


def load(name: str, settings: Settings) -> Allowance:
    """Return an allowance by name. Raises UsageError for an unknown name or a damaged file."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of an allowance: use small letters, digits and dashes, 32 at most")
    path = folder(settings) / f"{name}.json"
    try:
        return from_json(untrusted_input.load(path))
    except FileNotFoundError:
        check_known(name, settings)
        raise UsageError(f"{path} is lost; to end all runs of the allowance: inv down {name}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: {error}; to end all runs of the allowance: inv down {name}") from None


def names(settings: Settings) -> list[str]:
    """Return the names of all allowances, also of those whose record is unreadable or lost."""
    found = {path.stem for kind in ("json", "runs") for path in folder(settings).glob(f"*.{kind}")}
    return sorted(filter(NAME.fullmatch, found))


def check_known(name: str, settings: Settings) -> None:
    """Raise UsageError for the name of no allowance. The record of a known allowance may be unreadable."""
    if name not in (known := names(settings)):
        raise UsageError(f"no allowance is called {name}; known: {', '.join(known) or 'none'}")


@contextlib.contextmanager
def locked(name: str, settings: Settings) -> Iterator[None]:
    """Hold the lock of the record: commands of the owner write the record one after the other."""
    folder(settings).mkdir(parents=True, exist_ok=True, mode=0o711)
    with local_files.holding_lock(folder(settings) / f"{name}.changes", mode=0o600):
        yield


@contextlib.contextmanager
def changing(name: str, settings: Settings) -> Iterator[Allowance]:
    """Yield an allowance for a change. Raises UsageError."""
    one = load(name, settings)
    with locked(name, settings):
        yield load(one.name, settings)


def revoke(name: str, settings: Settings) -> None:
    """Mark an allowance as revoked. Raises UsageError for an unknown name.

    An unreadable record counts as revoked; the mark also holds for a newer checkout, which may know all fields.
    """
    check_known(name, settings)
    path = folder(settings) / f"{name}.json"
    with locked(name, settings), contextlib.suppress(FileNotFoundError, ValueError):
        said = untrusted_input.mapping(path.read_bytes())
        local_files.replace(path, json.dumps({**said, "is_revoked": True}, indent=1).encode(), 0o600)


@dataclass(frozen=True, kw_only=True)
class StartedRuns:
    """The runs and services that an allowance has started, alive or ended."""

    number: int = 0
    """Number of the last run or service."""
    runs: tuple[str, ...] = ()
    """Names of runs and of services."""
    services: Mapping[str, int] = field(default_factory=dict)
    """Limit of each service, in micro-USD."""
    held_back: Mapping[str, int] = field(default_factory=dict)
    """Money of each run for the end of its machines, beyond the limit of the run, in micro-USD."""
    machines: Mapping[str, int] = field(default_factory=dict)
    """Planned number of machines of each run and service."""


def started(name: str, settings: Settings) -> StartedRuns:
    """Return the runs and services of an allowance. Raises SlipwayError for a damaged file."""
    path = folder(settings) / f"{name}.runs"
    try:
        said = {"machines": {}, **untrusted_input.load(path)}
        services, held_back, machines = (
            {str(one): int(amount) for one, amount in said[name].items()}
            for name in ("services", "held_back", "machines")
        )
        runs, number = tuple(map(str, said["runs"])), int(said["number"])
        return StartedRuns(number=number, runs=runs, services=services, held_back=held_back, machines=machines)
    except FileNotFoundError:
        return StartedRuns()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SlipwayError(
            f"{path}: {error}; end the runs of the allowance: inv status, inv down RUN; then remove the file"
        ) from None


def save_started(name: str, record: StartedRuns, settings: Settings) -> None:
    local_files.replace(folder(settings) / f"{name}.runs", json.dumps(asdict(record)).encode(), 0o600)
