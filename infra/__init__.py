"""Finding, renting, reaching, watching and ending pods; the public functions load their dependencies on first use.

This file also runs on pods: Python 3.9, standard library only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import fabric


def connect(name: str) -> "fabric.Connection":
    """Return a Fabric connection to the pod or own machine called `name`; the connection opens on first use.

    The connection uses the pod's own key and accepts only the pod's pinned host key. `connection.folder` is the pod's
    folder on the machine; commands start in the home folder. A pod on this machine has the same interface without SSH.
    Raises UsageError if no machine, or several machines, have the name.
    """
    from infra import targets

    return targets.connect(name)


def connect_all(*names: str) -> "fabric.ThreadingGroup":
    """Return a Fabric group of the machines selected by `inv on` for these names; all pods without names."""
    from infra import targets

    return targets.connect_all(*names)
