"""A filter of the user's own: code that sees each machine with all that its vendor tells of it, and takes it or not.

In: the name of an extension that this process uses, an offer. Out: whether the machine is taken. The user's code runs
in this process; what it raises, or that it never returns, is told with its line, and nothing is rented.
"""

import json
import threading
from typing import Any

from infra.errors import UsageError
from infra.records import Offer
from store.extensions import ExtensionError, used
from store.extensions.run import blame, function

LONGEST_S = 10.0  # for one machine


def takes(name: str, offer: Offer) -> bool:
    """Return whether the filter called so takes the machine. Raises UsageError."""
    extension = used(name)
    if extension is None:
        raise UsageError(f"--machine-filter {name}: SLIPWAY_EXTENSIONS names no such extension")
    said: list[Any] = []
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            facts = json.loads(offer.raw) if offer.raw else {}
            said.append(function(extension, "filter")(offer, facts))
        except BaseException as error:  # also SystemExit: a user's code must not end ours
            raised.append(error)

    thread = threading.Thread(target=ask, daemon=True, name=f"filter {name}")
    thread.start()
    thread.join(LONGEST_S)
    if raised:
        why = str(raised[0]) if isinstance(raised[0], ExtensionError) else blame(extension, raised[0])
        raise UsageError(f"--machine-filter {name}: {why} (for {offer.provider} {offer.offer_id})") from raised[0]
    if not said:
        raise UsageError(f"--machine-filter {name}: no answer in {LONGEST_S:g} s ({extension.where})")
    if not isinstance(said[0], bool):
        raise UsageError(f"--machine-filter {name}: filter returned {said[0]!r:.100}; expected True or False "
                         f"({extension.where})")  # fmt: skip
    return said[0]
