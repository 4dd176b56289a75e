"""Output of machines in accounts for `audit` and `reap`, and the exit code of both."""

from collections.abc import Sequence
from typing import Any

from invoke import Exit

from flows.pods.accounts import MachineAction
from flows.supervisor.over_limit import OverLimit
from infra.ledger.audit import UNCLEAR, UNKNOWN_MARK, Finding
from infra.units import per_hour
from scripts.cli import render
from scripts.cli.session import past_limit_words

NOBODY = "no vendor's key is set, and the journal has no rented machine that may still run; no account was asked"


def done_words(one: MachineAction) -> str:
    return render.clean(f"{one.provider}: {one.run}: {one.what}")


def exit_for_findings(
    command: str, found: Sequence[Finding], problems: Sequence[str], then: str, over: Sequence[OverLimit] = ()
) -> None:
    """Raise Exit with code 5 if an unwanted machine of ours bills, or if this cannot be ruled out.

    `over`: pods found past their limit, ended or not.
    """
    wrong = [one for one in found if one.wastes_money]
    unclear = [one for one in wrong if one.kind == UNCLEAR]
    unknown = [one for one in wrong if one.kind == UNKNOWN_MARK]
    said = [past_limit_words(over)] if over else []
    if sure := [one for one in wrong if one not in (*unclear, *unknown)]:
        said.append(f"{in_words(sure)} should not run; {then}")
    if unclear:
        said.append(
            f"{in_words(unclear)} may run and bill, because the vendor's answer to the request was lost; run: inv reap"
        )
    if unknown:
        names = ", ".join(f"{one.provider} {one.pod_id or '?'} ({one.note})" for one in unknown)
        said.append(
            "machines with an unreadable mark may belong to this installation and bill. Look at the vendor's "
            f"page: {names}"
        )
    if problems:
        said.append("not every account answered, so more machines may bill: " + "; ".join(problems))
    if said:
        raise Exit(render.clean(f"inv {command}: " + "\n".join(said)), code=5)


def in_words(found: Sequence[Finding]) -> str:
    names = ", ".join(f"{one.provider} {one.pod_id or one.token} ({one.kind})" for one in found)
    cost = per_hour(sum(one.micro_usd_per_hour for one in found))
    return f"{render.count(len(found), 'machine')} of ours at {cost} ({names})"


def machine_json(one: Finding) -> dict[str, Any]:
    """Return a machine as JSON; null for unknown values. Money is a decimal string in US dollars."""
    return {
        "provider": one.provider,
        "id": one.pod_id or None,
        "whose": one.kind,
        "run": one.run or None,
        "name": one.name or None,
        "token": one.token or None,
        "state": one.state or None,
        "usd_per_hour": render.usd(one.micro_usd_per_hour),
        "age_s": None if one.age_s is None else round(one.age_s),
        "note": one.note or None,
    }
