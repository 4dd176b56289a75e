"""The `--control` flag of every command, which chooses the machine that runs the line."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import WORLD
from scripts.cli.line_runner import CommandLine, LineFlags


@dataclass(frozen=True, kw_only=True)
class ThroughHost(LineFlags):
    control: str = flag(
        "", "run the whole line on this host, over SSH; here: run on this machine", group=WORLD, unit="HOST"
    )

    def run(self, line: CommandLine) -> None:
        # Shell completion lists flags without importing the code for running a line.
        from packs.control_host.commands import run_on_host

        run_on_host.run_on_host(self.control, line)
