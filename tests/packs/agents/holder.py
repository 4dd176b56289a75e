"""The holder of a token: calls by the socket, as the MCP server does."""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from infra.agent.limits import read_clocks
from infra.rehearsal import attach
from packs.agents.control.receipt import Receipt
from packs.agents.records import client
from packs.agents.records.allowance import Allowance
from tests.world import World, until

HANG = {"machines": [{"trait": "no ssh", "count": None}]}  # machines that bill and never answer


def new_allowance() -> Allowance:
    """Return an allowance of 5 USD for 10,000 s from now."""
    now = read_clocks()
    return Allowance(
        name="demo",
        token_sha256="a" * 64,
        micro_usd=5_000_000,
        begins=now.wall_s,
        ttl_s=1e4,
        boot_id=now.boot_id,
        boot_s=now.boot_s,
    )


def market_of(world: World) -> attach.Running:
    """Return the market of the rehearsal of a world."""
    return attach.find(attach.worlds_folder(world.folder / "state" / "journal.db"))


def billing(world: World) -> list[str]:
    """Return the machines that bill, from the market's own records."""
    return [pod["id"] for pod in market_of(world).truth()["pods"] if pod["micro_usd_per_hour"]]


def is_cut_off(said: dict[str, Any]) -> bool:
    """Return whether a start was refused, or answered before its end: a loaded machine boots slowly."""
    return "refused" in said or "state" in said["result"]


class Agent:
    """The holder of a token: calls by the socket, as the MCP server does."""

    def __init__(self, world: World, name: str = "demo", **flags: str) -> None:
        words = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        said = world.json("allow", name, "--spend", "5", "--ttl", "12h", *words, "--rehearse")
        self.token, self.name = said["token"], name
        self.folder = next(iter(world.folder.rglob(f"{name}.json"))).parent
        self.shared = Path(said["folder"])  # of the socket, with --user

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return client.call(self.folder, self.name, self.token, tool, arguments)

    def later(self, tool: str, **arguments: Any) -> "Future[dict[str, Any]]":
        """Begin a call in a thread."""
        pool = ThreadPoolExecutor(1)
        made = pool.submit(self.ask, tool, **arguments)
        pool.shutdown(wait=False)
        return made

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls of the receipt, without a command."""
        receipt = Receipt.__new__(Receipt)
        receipt.path = self.folder / f"{self.name}.receipt"
        receipt.mark = receipt.path.with_suffix(".newest")
        return [*receipt.read().calls]

    def plan(self, **more: Any) -> str:
        said = self.ask("plan", **{"spend_usd": 2.0, "phase": "base", "profile": "tiny", "steps": 4, **more})
        assert "result" in said, said
        return str(said["result"]["plan_id"])

    def ends(self, run: str) -> str:
        """Return the state of a run after its end."""
        found: list[str] = []

        def is_over() -> bool:
            (row,) = self.ask("status", run=run)["result"]["runs"]
            found.append(row["state"])
            return row["state"] in ("succeeded", "failed", "ended")

        until(is_over, "the end of the run", 600)
        return found[-1]
