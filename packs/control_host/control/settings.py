"""The setting of the control host: the machine that runs the commands."""

from dataclasses import dataclass

from infra.settings import PackSettings, row

HERE = "here"  # as the name of a control host: none, commands run on this machine


@dataclass(frozen=True, kw_only=True)
class ControlHostSettings(PackSettings):
    control: str = row("SLIPWAY_CONTROL", "always-on machine that runs the commands, reached by SSH; here: none")
