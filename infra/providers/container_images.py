"""Container images of users: booted as the pod, or run by Podman or Docker on a machine that boots no such image."""

import shutil
from collections.abc import Collection

from infra.agent.execution.container import LOGIN
from infra.providers import Abilities
from infra.providers.by_name import PROVIDERS
from infra.settings import LOCAL, VENDORS
from store import packs

DOCKER = "docker:"
CONTAINERS = {"shadeform": "Docker", "ssh": "Podman", LOCAL: "Podman"}
"""Providers whose machines boot no image of the user, with the program that runs a container on these machines."""


def name_of(image_id: object) -> str:
    """Return the image of a value of `image_id`; "" without one, or for an image of a cloud's own machines."""
    return str(image_id).removeprefix(DOCKER) if str(image_id).startswith(DOCKER) else ""


def boots(provider: str) -> bool:
    """Return whether a provider documents that its pods boot an image of the user."""
    where = PROVIDERS.get(provider)
    documented = getattr(packs.load(where), "documented", None) if where else None
    return isinstance(documented, Abilities) and documented.images


def able() -> str:
    """Return the flags of the vendors whose pods boot an image."""
    return " or ".join(f"--provider {name}" for name in VENDORS if boots(name))


def problem(image: str, provider: str) -> str:
    """Return the reason why no machine of a provider runs an image, and the next step; "" if the machines do."""
    if boots(provider):
        return ""
    if provider not in CONTAINERS:
        return (
            f"image_id: machines of {provider} run no container image; install the packages of {image} in `setup`, "
            f"or add {able()}"
        )
    if provider == LOCAL and not shutil.which("podman"):
        return (
            f"image_id: Podman runs {image} on your own machines, and this machine has no podman; install it (Debian, "
            f"Ubuntu: apt install podman), or add {able()}"
        )
    return ""


def login_problem(image: str, names: Collection[str]) -> str:
    """Return the reason why a pod that boots an image has no login at a registry; "" without variables of a login."""
    found = [one for one in LOGIN if one in names]
    if not image or not found:
        return ""
    return (
        f"image_id: vendors boot an image without a login at the registry, so {', '.join(found)} would have no effect, "
        f"and the machine would look for {image} at the public registry; add --provider shadeform, ssh, local or "
        "skypilot, which log in, or remove these variables and name a public image"
    )


def part_problem(image: str, names: Collection[str]) -> str:
    """Return the missing variables of a login at a registry; "" for all variables, or none."""
    missing = [one for one in LOGIN if one not in names]
    if not image or len(missing) in (0, len(LOGIN)):
        return ""
    return f"image_id: a login at a registry needs {', '.join(LOGIN)} together; set {', '.join(missing)} too"


def in_plan(image: str, provider: str, is_rehearsed: bool, names: Collection[str] = ()) -> str:
    """Return the line of the plan about an image. names: variables of the job."""
    if is_rehearsed:
        where = f"; the scripts run in a container of {image}" if provider in CONTAINERS else f" boots {image}"
        return f"image_id: a rehearsed pod is a folder of this machine, without the image; a rented pod{where}"
    if provider in CONTAINERS:
        login = ", after a login at the registry" if set(LOGIN) <= set(names) else ""
        return (
            f"image_id: {CONTAINERS[provider]} on the machine runs `setup` and `run` in a container of {image}{login}, "
            "with the network, the GPUs and the folders of the pod; ~ is a folder of the pod (docs/guides/jobs.md)"
        )
    return f"image_id: the pod boots {image}, which needs root and Python 3 (docs/guides/jobs.md)"
