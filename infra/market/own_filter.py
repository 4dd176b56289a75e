"""User-defined machine filter: an extension's code to accept or reject each offer.

`takes` runs the named extension on an offer and the vendor's raw description, within this process. An exception or a
timeout of the user's code becomes a UsageError with the code's location, and no machine is rented.
"""

import json

from infra.errors import UsageError
from infra.records import Offer
from store.extensions import ExtensionError, used
from store.extensions.run import blame, function, in_time

LONGEST_S = 10.0  # seconds per machine


def takes(name: str, offer: Offer) -> bool:
    """Return whether the named filter accepts the machine. Raises UsageError."""
    extension = used(name)
    if extension is None:
        raise UsageError(f"--machine-filter {name}: SLIPWAY_EXTENSIONS lists no extension of this name")
    facts = json.loads(offer.raw) if offer.raw else {}
    said, error = in_time(lambda: function(extension, "filter")(offer, facts), f"filter {name}", LONGEST_S)
    if error:
        why = str(error) if isinstance(error, ExtensionError) else blame(extension, error)
        raise UsageError(f"--machine-filter {name}: {why} (for {offer.provider} {offer.offer_id})") from error
    if not said:
        raise UsageError(f"--machine-filter {name}: no answer in {LONGEST_S:g} s ({extension.where})")
    if not isinstance(said[0], bool):
        raise UsageError(
            f"--machine-filter {name}: filter returned {said[0]!r:.100}; expected True or False ({extension.where})"
        )
    return said[0]
