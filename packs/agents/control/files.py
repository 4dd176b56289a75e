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
        known = ", ".join(one.name for one in every(settings)) or "none"
        raise UsageError(f"no allowance is called {name}; known: {known}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{path}: {error}; to end all runs of the allowance: inv down {name}") from None


def every(settings: Settings) -> list[Allowance]:
    """Return all readable allowances, by name."""
    found = []
    for path in sorted(folder(settings).glob("*.json")):
        with contextlib.suppress(ValueError, TypeError, KeyError, OSError):
            found.append(from_json(untrusted_input.load(path)))
    return found


@contextlib.contextmanager
def changing(name: str, settings: Settings) -> Iterator[Allowance]:
    """Yield an allowance for a change: two commands of the owner change the record one after the other."""
    one = load(name, settings)
    with local_files.holding_lock(folder(settings) / f"{name}.changes", mode=0o600):
        yield load(one.name, settings)


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
        raise SlipwayError(f"{path}: {error}; end the runs of the allowance: inv status, inv down RUN") from None


def save_started(name: str, record: StartedRuns, settings: Settings) -> None:
    local_files.replace(folder(settings) / f"{name}.runs", json.dumps(asdict(record)).encode(), 0o600)
