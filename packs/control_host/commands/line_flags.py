"""The flag `--control` of every command: the machine that runs the line."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import WORLD
from scripts.cli.line_runner import CommandLine, LineFlags


@dataclass(frozen=True, kw_only=True)
class ThroughHost(LineFlags):
    control: str = flag(
        "", "run the whole line on that machine, over SSH; here: on this machine", group=WORLD, unit="HOST"
    )

    def run(self, line: CommandLine) -> None:
        # A list of flags, as Tab needs one, is made without what runs a line.
        from packs.control_host.commands import run_there

        run_there.run_there(self.control, line)
