"""A filter of the user's own: code that sees each machine with all that its vendor tells of it, and takes it or not.

In: the name of an extension that this process uses, an offer. Out: whether the machine is taken. The user's code runs
in this process; what it raises, or that it never returns, is told with its line, and nothing is rented.
"""

import json

from infra.errors import UsageError
from infra.records import Offer
from store.extensions import ExtensionError, used
from store.extensions.run import blame, function, in_time

LONGEST_S = 10.0  # for one machine


def takes(name: str, offer: Offer) -> bool:
    """Return whether the filter called so takes the machine. Raises UsageError."""
    extension = used(name)
    if extension is None:
        raise UsageError(f"--machine-filter {name}: SLIPWAY_EXTENSIONS names no such extension")
    facts = json.loads(offer.raw) if offer.raw else {}
    said, error = in_time(lambda: function(extension, "filter")(offer, facts), f"filter {name}", LONGEST_S)
    if error:
        why = str(error) if isinstance(error, ExtensionError) else blame(extension, error)
        raise UsageError(f"--machine-filter {name}: {why} (for {offer.provider} {offer.offer_id})") from error
    if not said:
        raise UsageError(f"--machine-filter {name}: no answer in {LONGEST_S:g} s ({extension.where})")
    if not isinstance(said[0], bool):
        raise UsageError(f"--machine-filter {name}: filter returned {said[0]!r:.100}; expected True or False "
                         f"({extension.where})")  # fmt: skip
    return said[0]
