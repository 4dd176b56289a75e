"""The masking of a job's secrets in the copies of its logs on this side, before they are written down or shown.

In: the row of a pod, and the transport to it. Out: a `Mask` with the secrets of the job, as this process was given them
and as the pod has them, and with the keys of this installation. Nothing of it is written down.
"""

import contextlib
import os
from collections.abc import Iterable

from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.runs.sight import folder_of
from infra.transport.protocol import Transport
from infra.transport.scan import own_keys
from infra.transport.scan.contents import LEAST_VALUE_LETTERS
from store import outside
from store.masking import Mask

SECRETS_BYTES = 1 << 20
MOST_SECRETS = 1000
_there: dict[str, dict[str, str]] = {}  # by the pod's token: what it was handed does not change


def mask_for(op: Op, transport: Transport) -> Mask:
    """Return the mask for the logs of a pod. Raises SlipwayError when the pod cannot be asked for its secrets."""
    names = _names(op)
    handed = handed_to(op, transport) if names else {}
    return Mask((*_known_here(names), *(handed.get(name, "") for name in names)))


def mask_here(op: Op) -> Mask:
    """Return the mask for the logs of a pod that is gone, with what this process knows."""
    return Mask(_known_here(_names(op)))


def _names(op: Op) -> tuple[str, ...]:
    """Return the names of a job's secrets; none of a job that cannot be read, of which other commands tell."""
    with contextlib.suppress(UsageError):
        return op.read_job().secrets if op.job else ()
    return ()


def _known_here(names: Iterable[str]) -> list[str]:
    """Return the secrets of a job as this process was given them, and the keys of this installation."""
    own = [one.value for one in own_keys.of_installation() if len(one.value) >= LEAST_VALUE_LETTERS]
    return [*own, *(os.environ.get(name, "") for name in names)]


def handed_to(op: Op, transport: Transport) -> dict[str, str]:
    """Return the secrets that a pod was handed, as its own file says; {} before the hand-over, and where it is gone."""
    if op.token not in _there:
        try:
            said = outside.mapping(transport.get(folder_of(op).secrets, SECRETS_BYTES), SECRETS_BYTES, MOST_SECRETS)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except outside.Unreadable as error:
            raise SlipwayError(f"{op.run}: the secrets of its pod cannot be read to mask them: {error}") from None
        _there[op.token] = {name: value for name, value in said.items() if isinstance(value, str)}
    return _there[op.token]
