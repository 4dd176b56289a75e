"""Finding, renting, reaching, watching and ending pods; what other code may import, which loads nothing by itself.

This file also runs on pods: Python 3.9, standard library only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import fabric


def connect(name: str) -> "fabric.Connection":
    """Return a Fabric connection to the pod, or own machine, of that name, which is opened by its first use.

    It uses the pod's own key and is pinned to its host key. `connection.folder` is the pod's folder there; commands
    begin in the home folder. A pod of this machine is dealt with in the same way, without SSH. Raises UsageError when
    nothing, or more than one machine, has that name.
    """
    from infra import targets

    return targets.connect(name)


def connect_all(*names: str) -> "fabric.ThreadingGroup":
    """Return a Fabric group of the machines that `inv on` would take for these names; of all pods without names."""
    from infra import targets

    return targets.connect_all(*names)
