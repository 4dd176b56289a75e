"""Memory of machines: their facts, the time of the last look, and recent failures.

A JSON file beside the journal, keyed by machine (`ssh:pool/host`). A lost file only costs a new look at the machines.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from infra import journal_file
from infra.agent.job import write_durably
from infra.errors import SlipwayError
from infra.records import Offer
from infra.transport.protocol import ConnectionLost, Transport
from store import untrusted_input

AGENT = Path(__file__).parents[1] / "agent"
ASK_S = 30.0
OLDEST_PYTHON = (3, 9)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class HostFacts:
    """Remembered facts about a machine; times are UTC epoch seconds."""

    facts: Mapping[str, Any] = field(default_factory=dict)  # the answer of `infra/agent/host.py facts`
    seen_at: float | None = None
    failure: str = ""  # reason for giving the machine back; "" = no failure
    failed_at: float | None = None


@dataclass(frozen=True)
class HostMemory:
    """The machine memory of an installation, stored in `path`."""

    path: Path

    @staticmethod
    def for_journal(journal: Path) -> "HostMemory":
        return HostMemory(journal.with_name(f"{journal.stem}-hosts.json"))

    def all(self) -> dict[str, HostFacts]:
        """Return the facts of all machines, by machine. Raises SlipwayError for a damaged file."""
        try:
            read = untrusted_input.load(self.path)
            return {machine: HostFacts(**known) for machine, known in read.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise SlipwayError(f"{self.path} is damaged ({error}); remove the file, then run: inv pool.up") from None

    def get(self, machine: str) -> HostFacts:
        return self.all().get(machine, HostFacts())

    def save_facts(self, machine: str, facts: Mapping[str, Any]) -> None:
        """Store the facts of a machine with the current time."""
        self._change(machine, facts=dict(facts), seen_at=time.time())

    def record_failure(self, machine: str, failure: str) -> None:
        """Store the failure of a returned machine; `forgive` removes the entry."""
        self._change(machine, failure=failure, failed_at=time.time())

    def recent_failures(self, within_s: float) -> dict[str, HostFacts]:
        """Return the machines with a failure within the last `within_s` seconds, by name."""
        since = time.time() - within_s
        return {machine: known for machine, known in self.all().items() if (known.failed_at or 0.0) > since}

    def clear_failure(self, machine: str) -> None:
        self._change(machine, failure="", failed_at=None)

    def _change(self, machine: str, **what: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with journal_file.locked(self.path):
            known = {name: asdict(one) for name, one in self.all().items()}
            known[machine] = {**known.get(machine, asdict(HostFacts())), **what}
            write_durably(self.path, json.dumps(known, indent=1, sort_keys=True) + "\n", 0o600)


def failure_key(offer: Offer) -> str:
    """Return the name under which failures of a machine, or of a vendor's offer, are stored."""
    return f"{offer.provider}:{offer.place or offer.offer_id}"


def ask(transport: Transport, python: str, verb: str, *words: str) -> dict[str, Any]:
    """Return the machine's answer to a verb of `infra/agent/host.py`. Raises SlipwayError."""
    return run_script(transport, python, (AGENT / "host.py").read_bytes(), verb, *words)


def run_script(
    transport: Transport, python: str, script: bytes, *words: str, timeout_s: float = ASK_S
) -> dict[str, Any]:
    """Run a Python script on the machine and return the printed JSON object.

    After TimedOut or ConnectionLost the script may have done its work. After any other SlipwayError the script failed
    or never started.
    """
    done = transport.run([python, "-", *words], stdin=script, timeout_s=timeout_s)
    if done.exited == 127:
        raise SlipwayError(
            f"{python} was not found; install Python 3.9 or newer on this host, or set `python:` of this host"
        )
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
    if done.exited != 0:
        raise SlipwayError(f"{python} ended with exit code {done.exited}; last output: {said}")
    try:  # a start-up file of the shell may have printed earlier lines
        return untrusted_input.mapping(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError, TypeError):
        raise ConnectionLost(f"{python} sent an unexpected answer: {said}") from None


def map_parallel(function: Callable[[T], R], items: Sequence[T], deadline_s: float) -> "list[R | SlipwayError]":
    """Run `function` on all items in parallel and return the results in order, with errors in place of results.

    Late items get a SlipwayError. An unexpected exception becomes a SlipwayError with the exception's name and the
    original as the cause, to keep the results of the other items.
    """
    results: list[R | SlipwayError] = [SlipwayError(f"no answer in {deadline_s:g} s") for _ in items]

    def work(index: int) -> None:
        try:
            results[index] = function(items[index])
        except SlipwayError as error:
            results[index] = error
        except Exception as error:  # without this handler the item would count as late
            told = results[index] = SlipwayError(f"{type(error).__name__}: {error}")
            told.__cause__ = error

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(items))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + deadline_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return list(results)
