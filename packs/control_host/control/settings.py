"""Settings of the control host: the machine that runs the commands."""

from dataclasses import dataclass

from infra.settings import PackSettings, row

HERE = "here"  # host name that means: run commands on this machine


@dataclass(frozen=True, kw_only=True)
class ControlHostSettings(PackSettings):
    control: str = row("SLIPWAY_CONTROL", "always-on machine that runs the commands, reached by SSH; here: none")
