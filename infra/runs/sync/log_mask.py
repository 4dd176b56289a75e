"""Masking of a job's secrets in local copies of logs, before the logs are stored or shown.

A `Mask` covers the secrets of the job, as known to this process and as stored on the pod, and the keys of this
installation. No secret is written to disk.
"""

import contextlib
import os
from collections.abc import Iterable

from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.runs.observation import folder_of
from infra.transport.protocol import Transport
from infra.transport.scan.contents import LEAST_VALUE_LETTERS, keys_of_installation
from store import untrusted_input
from store.masking import Mask

SECRETS_BYTES = 1 << 20
MOST_SECRETS = 1000
_there: dict[str, dict[str, str]] = {}  # By the pod's token; the secrets of a pod never change.


def mask_for(op: Op, transport: Transport) -> Mask:
    """Return the mask for the logs of a pod. Raises SlipwayError if the secrets on the pod cannot be read."""
    names = _names(op)
    handed = handed_to(op, transport) if names else {}
    return Mask((*_known_here(names), *(handed.get(name, "") for name in names)))


def mask_here(op: Op) -> Mask:
    """Return the mask for the logs of a gone pod, from the secrets known to this process."""
    return Mask(_known_here(_names(op)))


def _names(op: Op) -> tuple[str, ...]:
    """Return the names of a job's secrets; () for an unreadable job, which other commands report."""
    with contextlib.suppress(UsageError):
        return op.read_job().secrets if op.job else ()
    return ()


def _known_here(names: Iterable[str]) -> list[str]:
    """Return the secret values of a job in this process's environment, and the keys of this installation."""
    own = [one.value for one in keys_of_installation() if len(one.value) >= LEAST_VALUE_LETTERS]
    return [*own, *(os.environ.get(name, "") for name in names)]


def handed_to(op: Op, transport: Transport) -> dict[str, str]:
    """Return the secrets on the pod by name; {} before the hand-over or without the file. Raises SlipwayError."""
    if op.token not in _there:
        try:
            said = untrusted_input.mapping(
                transport.get(folder_of(op).secrets, SECRETS_BYTES), SECRETS_BYTES, MOST_SECRETS
            )
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except untrusted_input.UnusableDocument as error:
            raise SlipwayError(
                f"{op.run}: the secrets of the pod cannot be read, so logs cannot be masked: {error}"
            ) from None
        _there[op.token] = {name: value for name, value in said.items() if isinstance(value, str)}
    return _there[op.token]
