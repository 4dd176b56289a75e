"""Time left of an allowance, by the clock that counted more: setting a clock back gives no time.

Allowance, boot clock and wall clock -> seconds left -> `refusal`: "" or the reason in words
"""

from infra.agent.limits import Clocks, gap_s, read_clocks
from infra.errors import UsageError
from infra.settings import Settings
from packs.agents.control import files
from packs.agents.records.allowance import Allowance


def left_s(one: Allowance) -> float:
    """Return the seconds until the end of an allowance, 0 after the end."""
    began = Clocks(one.boot_id, one.boot_s, one.begins)
    return max(0.0, one.ttl_s - gap_s(began, read_clocks()))


def refusal(one: Allowance) -> str:
    """Return why the allowance gives nothing now; "" if the allowance is valid."""
    return one.refusal(left_s(one))


def why_ended(name: str, settings: Settings) -> str:
    """Return why an allowance gives nothing now; "" if the allowance is valid. An unreadable record gives nothing."""
    try:
        return refusal(files.load(name, settings))
    except UsageError as error:
        return str(error)
