"""An allowance: what the holder of a token may do, and until when, as a frozen record. No I/O; standard library only.

Allowance, seconds left -> `refusal` -> "" or the reason in words
"""

import hashlib
import math
import re
import secrets
from dataclasses import dataclass, fields
from typing import Any, cast

PREFIX = "allow-"  # of tokens and of budgets in the journal
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
RENT, SERVE = "rent", "serve"
MAY = (RENT, SERVE)


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """The rights of the holder of a token."""

    name: str
    token_sha256: str
    micro_usd: int
    """Most that all machines of the allowance may cost together."""
    begins: float
    """UTC epoch seconds."""
    ttl_s: float
    """Seconds until all machines and services of the allowance end."""
    boot_id: str
    """Boot of this machine, and seconds since that boot, at the beginning: a wall clock may be set."""
    boot_s: float
    machines: int = 1
    """Most machines at a time."""
    providers: tuple[str, ...] = ()
    """Vendors; () = every vendor with a key."""
    gpus: tuple[str, ...] = ()
    """Kinds of GPUs, such as H100 or H100-SXM; () = every kind."""
    may: tuple[str, ...] = MAY
    """`rent`: launch trainings; `serve`: start services."""
    user: str = ""
    """User of this machine who may connect; "" = the owner of the allowance."""
    is_revoked: bool = False

    @property
    def budget(self) -> str:
        """Return the name of the budget in the journal."""
        return f"{PREFIX}{self.name}"

    def run_name(self, number: int) -> str:
        """Return the name of a run or service of the allowance."""
        return f"{self.name}-{number}"

    @property
    def ends(self) -> float:
        """Return the planned end, in UTC epoch seconds."""
        return self.begins + self.ttl_s

    def refusal(self, left_s: float) -> str:
        """Return why the allowance gives nothing with `left_s` seconds left; "" if the allowance is valid."""
        if self.is_revoked:
            return f"the allowance {self.name} was revoked"
        return f"the allowance {self.name} has ended" if left_s <= 0 else ""

    def refuse_kind(self, what: str) -> str:
        """Return why the allowance does not cover `rent` or `serve`; "" if the allowance covers it."""
        return "" if what in self.may else f"the allowance {self.name} may {' and '.join(self.may)}, and not {what}"

    def refuse_provider(self, provider: str) -> str:
        """Return why a provider is outside the allowance; "" = inside."""
        if self.providers and provider not in self.providers:
            return f"the provider {provider} is outside the allowance; inside: {', '.join(self.providers)}"
        return ""


def new_token() -> tuple[str, str]:
    """Return a token, to be shown once, and the digest to store: 32 random bytes need no slow hash."""
    token = PREFIX + secrets.token_urlsafe(32)
    return token, digest(token)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def from_json(said: Any) -> Allowance:
    """Return the record of a stored document. Raises ValueError, TypeError, KeyError for a damaged document."""
    known = {one.name: one for one in fields(Allowance)}
    if not isinstance(said, dict) or set(said) - set(known):
        raise ValueError("not an allowance")
    made = {name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in said.items()}
    if odd := [name for name, value in made.items() if not _is_kind(value, known[name].type)]:
        raise ValueError(f"{odd[0]} is of a wrong kind")
    found = Allowance(**cast(Any, made))
    if not NAME.fullmatch(found.name) or type(found.micro_usd) is not int or found.micro_usd <= 0:
        raise ValueError("not an allowance")
    return found


def _is_kind(value: Any, kind: Any) -> bool:
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is (kind if kind in (str, int, bool) else tuple)
