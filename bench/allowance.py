"""Compare an agent with an allowance and an agent with vendors' keys, over random and adversarial call sequences.

Run: python -m bench.allowance [--sequences N] [--seed N] [--out FILE]. Prints one table: dollars spent against the
dollars of the allowances, machines that nothing ends, and effects outside of the allowance.

A sequence has one allowance, two agents with the same token, and 6 to 14 moves: plans and starts of trainings and
services, each perhaps twice at once; invented and used plan ids, and ids of another allowance; fuzzed arguments; a
wrong token; a run and a service of the owner with names that begin like names of the allowance; ends; SIGKILL of
broker, supervisor, launch, `serve.up` and MCP server; an agent that leaves during a call; lost, torn and dropped
replies of vendors; a wall clock that is set by hours. The owner ends the allowance by `--revoke` or `down`, or its time
ends. Nine of ten machines bill and never answer, which needs no processor; the others train or serve.
`bench/allowance_site.py` plays a sequence with real processes against the rehearsal.

The arm `vendor client` plays the same sequence with the clients of the vendors, without limits: a launch rents the
machine, the agent ends the machine when the planned dollars have passed, and a killed agent, or an agent whose request
got no answer, has forgotten the machine. The night ends after NIGHT_S on the clock of the market.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.allowance_site import Site
from infra.agent.job import Limits
from infra.errors import SlipwayError
from infra.names import new_token
from infra.providers import Market
from tests.faults.rented import VENDORS, order, stage

BILLS = ({"trait": "no ssh", "count": None},)
NIGHT_S = 12 * 3600.0
USD = (0.2, 0.5, 1.0)
SHARES = (0.2, 0.5, 0.9, 1.0, 1.5)  # of the allowance, as the limit of a plan
MOVES = {
    "start": 6,
    "fuzz": 2,
    "steal": 1,
    "replay": 1,
    "other": 1,
    "down": 2,
    "kill": 4,
    "leave": 1,
    "lost": 2,
    "clock": 1,
    "look": 1,
    "wait": 2,
}
COUNTED = ("calls", "starts", "kills")
VICTIMS = ("broker", "broker", "supervisor", "launch", "launch", "serve.up", "server")
REPLIES = ("lost", "torn", "dropped", "error but done", "throttle")
JUNK: tuple[Any, ...] = (
    None,
    -1,
    1e308,
    "x" * 9000,
    ["--yes"],
    {"a": {}},
    "../../etc/passwd",
    "--budget=x=9",
    "\x00",
    True,
)
NAMES = ("spend_usd", "phase", "gpu", "provider", "options", "run", "plan_id", "budget", "hours", "source", "prompt")


@dataclass(frozen=True, kw_only=True)
class Move:
    """A move of a sequence; pause_s: until the next move, in seconds of the processes."""

    what: str
    pause_s: float
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """The moves of two agents with one allowance."""

    number: int
    usd: float
    machines: int
    moves: tuple[Move, ...]
    ending: str
    """End of the allowance: `revoke`, `down`, or `time`."""


@dataclass(kw_only=True)
class Outcome:
    """The end of a sequence, from the market's own records."""

    usd: float
    spent_usd: float = 0.0
    machines: int = 0
    orphans: int = 0
    outside: int = 0
    wrong: list[str] = field(default_factory=list)
    calls: int = 0
    starts: int = 0
    """Runs that passed all checks: each rents one machine or more, or is cut off by a kill."""
    kills: int = 0
    seconds: float = 0.0

    @property
    def over_usd(self) -> float:
        return max(0.0, self.spent_usd - self.usd)


def sequence(seed: int, number: int) -> Sequence:
    """Return a random sequence, the same for the same seed and number."""
    chance = random.Random(f"{seed} {number}")
    usd, moves = chance.choice(USD), []
    for what in ["start", *chance.choices([*MOVES], weights=[*MOVES.values()], k=chance.randint(5, 13))]:
        about: dict[str, Any] = {}
        if what == "start":
            about = {"spend_usd": round(usd * chance.choice(SHARES), 2), "provider": chance.choice(("", *VENDORS))}
            about |= {"is_twice": chance.random() < 0.3, "by_server": chance.random() < 0.15}
            about["steps"] = chance.randint(2, 99)  # other work: the same work starts once
            about["is_service"] = chance.random() < 0.25
        elif what == "fuzz":
            fields = chance.sample(NAMES, chance.randint(0, 3))
            about = {"tool": chance.choice(("plan", "launch", "logs", "down", "status", "x\n", "offers", "serve_up"))}
            about["arguments"] = {name: chance.choice(JUNK) for name in fields}
        elif what == "kill":
            about = {"victim": chance.choice(VICTIMS)}
        elif what == "lost":
            about = {"kind": chance.choice(REPLIES), "call": chance.choice(("create", "delete", "list", ""))}
        elif what == "clock":
            about = {"hours": chance.choice((-11, -3, 3, 26))}
        moves.append(Move(what=what, pause_s=chance.choice((0.0, 0.3, 1.0, 3.0, 8.0)), about=about))
    ending = chance.choice(("revoke", "revoke", "down", "time"))
    return Sequence(number=number, usd=usd, machines=chance.choice((1, 2, 3)), moves=tuple(moves), ending=ending)


# The arm without an allowance.


class PlainAgent:
    """An agent with the keys of the vendors; `machines`: vendor, id, and time to end, as far as the agent knows."""

    def __init__(self, vendors: dict[str, Market]) -> None:
        self.vendors, self.machines = vendors, list[tuple[str, str, float]]()

    def rent(self, number: int, about: dict[str, Any], now: float) -> None:
        """Rent a machine, and once more without an answer, as a client with a retry does."""
        vendor = self.vendors[about["provider"] or "lium"]
        request, _ = order(vendor.name, f"agent-{number}")
        for _ in range(2):
            with contextlib.suppress(SlipwayError):
                offer = vendor.offers(request)[0]
                made = vendor.create(request, offer, new_token("plainapi"), Limits(time_s=2 * NIGHT_S))
                end = now + about["spend_usd"] * 3.6e9 / offer.micro_usd_per_hour
                self.machines.append((vendor.name, made.pod_id, end))
                return

    def end(self, until: float) -> None:
        """End the known machines whose planned dollars have passed by `until`."""
        for one in [one for one in self.machines if one[2] <= until]:
            with contextlib.suppress(SlipwayError):
                self.vendors[one[0]].delete(one[1])
                self.machines.remove(one)


def without_allowance(one: Sequence, folder: Path) -> Outcome:
    """Play a sequence with the clients of the vendors only."""
    found = Outcome(usd=one.usd)
    with stage(folder, boots=True) as here:
        here.fault(machines=BILLS)
        agent = PlainAgent({name: here.vendor(name, folder / "journal.sqlite") for name in VENDORS})
        began, rented = here.now(), 0
        for move in one.moves:
            if move.what in ("start", "replay", "steal"):  # nothing compares a plan id
                about = {"spend_usd": one.usd, "provider": "", "is_twice": False, **move.about}
                for _ in range(2 if about["is_twice"] else 1):
                    rented += 1
                    agent.rent(rented, about, here.now())
            elif move.what == "down":
                agent.end(here.now() + NIGHT_S)
            elif move.what in ("kill", "leave"):
                agent.machines.clear()
                found.kills += 1
            elif move.what == "lost":
                here.fault({"kind": move.about["kind"], "call": move.about["call"], "count": 2}, machines=BILLS)
            here.move(60 * move.pause_s + 1)
            agent.end(here.now())
        while (left_s := NIGHT_S - (here.now() - began)) > 0:
            here.move(min(left_s, 900.0))
            agent.end(here.now())
        pods = here.running.truth()["pods"]
        found.spent_usd = sum(pod["billed_micro_usd"] for pod in pods) / 1e6
        found.orphans = sum(pod["micro_usd_per_hour"] > 0 for pod in pods)
        found.machines = len(pods)
    return found


def table(arms: dict[str, list[Outcome]]) -> str:
    """Return the table, a row per arm."""
    head = "sequences; allowed USD; spent USD; over USD; sequences over; worst over USD; machines; orphans; outside"
    rows: list[tuple[str, ...]] = [("arm", *head.split("; "))]
    for name, found in arms.items():
        over = [one.over_usd for one in found]
        numbers = (sum(one.usd for one in found), sum(one.spent_usd for one in found), sum(over))
        counts = (
            sum(one.machines for one in found),
            sum(one.orphans for one in found),
            sum(one.outside for one in found),
        )
        rows.append((name, str(len(found)), *(f"{number:.2f}" for number in numbers), str(sum(one > 0 for one in over)),
                     f"{max(over, default=0.0):.2f}", *map(str, counts)))  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ("---",) * len(rows[0]), *rows[1:]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--sequences", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence, to continue or repeat")
    parser.add_argument("--arm", choices=("both", "allowance", "plain"), default="both")
    parser.add_argument("--out", type=Path, help="append a line of JSON per sequence and arm to this file")
    words = parser.parse_args()
    arms: dict[str, list[Outcome]] = {"allowance": [], "vendor client": []}
    began = time.monotonic()

    def tell(name: str, one: Sequence, found: Outcome) -> None:
        arms[name].append(found)
        facts = {"arm": name, "seed": words.seed, "number": one.number, **asdict(found), "over_usd": found.over_usd}
        if words.out:
            with words.out.open("a") as file:
                file.write(json.dumps(facts) + "\n")
        print(json.dumps({key: round(value, 3) if type(value) is float else value for key, value in facts.items()}),
              file=sys.stderr, flush=True)  # fmt: skip

    numbers = range(words.first, words.first + words.sequences)
    if words.arm != "plain":
        with tempfile.TemporaryDirectory(prefix="allowance-") as folder, Site(Path(folder), words.seed) as site:
            for number in numbers:
                one = sequence(words.seed, number)
                found, at = Outcome(usd=one.usd), time.monotonic()
                site.play(one, found)
                found.seconds = time.monotonic() - at
                tell("allowance", one, found)
    for number in numbers if words.arm != "allowance" else ():
        one = sequence(words.seed, number)
        with tempfile.TemporaryDirectory(prefix="plain-") as folder:
            tell("vendor client", one, without_allowance(one, Path(folder)))
    print(table({name: found for name, found in arms.items() if found}))
    facts = ", ".join(f"{sum(getattr(one, name) for one in arms['allowance'])} {name}" for name in COUNTED)
    print(f"{facts}; {(time.monotonic() - began) / 60:.1f} minutes")
    wrong = [f"sequence {number}: {why}" for number, one in zip(numbers, arms["allowance"], strict=False)
             for why in one.wrong]  # fmt: skip
    print("\n".join(wrong) or "no fault of the allowance found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
