"""The errors of stores, apart from `store.manifest`: every command line catches them."""


class StoreError(Exception):
    """A failed operation on the store; the message gives the observed state."""

    exit_code = 1


class NoStore(StoreError):
    """A URI that cannot be a store, or a store without write access."""

    exit_code = 2


class AccessDenied(NoStore):
    """A missing or rejected key of a store."""

    exit_code = 4
