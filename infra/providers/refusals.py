"""Classification of a vendor's refusal to rent, with one table per vendor.

The statuses 402 and 429 decide first, then a web firewall, the error code, known sentences with a named source, and
last any other status. Only UNKNOWN leaves a row open: every other kind proves that no machine was rented.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from infra.errors import AuthError, NoOffer, OutOfMoney, RateLimited, SlipwayError
from infra.providers.json_api import BLOCKED, Reply, UnclearOutcome, VendorRefused, is_blocked


class RefusalKind(Enum):
    """The kinds of a refusal, each with the consequence for a launch."""

    NO_STOCK = "this offer is unavailable; the next offer may be available"
    NO_MONEY = "the account cannot pay for any offer of this vendor"
    BAD_KEY = "the key may not rent"
    BAD_REQUEST = "the request breaks a rule of the vendor, which applies to every offer"
    THROTTLED = "too many requests; the next offer can be requested after a pause"
    UNKNOWN = "the request may have created a machine"


@dataclass(frozen=True)
class Sentence:
    """A part of a refusal's code or text, in lower case, with the source of the observation."""

    part: str
    kind: RefusalKind
    source: str


@dataclass(frozen=True, kw_only=True)
class RefusalTable:
    """The refusals of a vendor."""

    vendor: str
    billing_url: str
    codes: Mapping[str, RefusalKind] = field(default_factory=dict)
    sentences: tuple[Sentence, ...] = ()
    statuses: Mapping[int, RefusalKind] = field(default_factory=dict)

    def kind_of(self, reply: Reply) -> RefusalKind:
        """Return the kind of a refusal. The statuses 402 and 429 decide alone, regardless of the text."""
        verdicts = {402: RefusalKind.NO_MONEY, 429: RefusalKind.THROTTLED}
        if reply.status in verdicts:
            return verdicts[reply.status]
        if is_blocked(reply):
            return RefusalKind.BAD_REQUEST
        if reply.code in self.codes:
            return self.codes[reply.code]
        text = f"{reply.code} {reply.summary}".lower()
        for sentence in self.sentences:
            if sentence.part in text:
                return sentence.kind
        return self.statuses.get(reply.status, RefusalKind.UNKNOWN)

    def to_error(self, error: SlipwayError) -> SlipwayError:
        """Return the error for the caller of `create`, classified by the vendor's answer.

        Return an error without an answer unchanged.
        """
        reply = error.reply if isinstance(error, (VendorRefused, UnclearOutcome)) else None
        return error if reply is None else self.error_for_reply(reply, str(error))

    def error_for_reply(self, reply: Reply, words: str) -> SlipwayError:
        """Return the error for an unsuccessful answer; `words` name the request and the answer."""
        meaning = self.kind_of(reply)
        if meaning is RefusalKind.NO_STOCK:
            return NoOffer(f"{self.vendor}: {reply.summary}")
        if meaning is RefusalKind.NO_MONEY:
            return OutOfMoney(f"{words}; add credit at {self.billing_url}")
        if meaning is RefusalKind.BAD_KEY:
            return AuthError(words)
        if meaning is RefusalKind.THROTTLED:
            return RateLimited(f"{self.vendor} accepts no more requests now: {reply.summary}", reply.retry_after_s)
        if meaning is RefusalKind.BAD_REQUEST:
            words += f"; {BLOCKED}" if is_blocked(reply) else ""
            return VendorRefused(f"{words}; nothing was rented; other offers would get the same answer", reply)
        carried_out = "the request may have been carried out"
        return UnclearOutcome(words if carried_out in words else f"{words}; {carried_out}", reply)
