"""Settings of the holder of an allowance."""

from dataclasses import dataclass

from infra.settings import PackSettings, row


@dataclass(frozen=True, kw_only=True)
class AgentsSettings(PackSettings):
    allowance_token: str = row("SLIPWAY_ALLOWANCE_TOKEN", "token of an allowance, for inv mcp")
