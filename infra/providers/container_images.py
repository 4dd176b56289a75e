"""Container images of users: booted as the pod, or run by Podman or Docker on a machine that boots no such image."""

import shutil

from infra.providers import Abilities
from infra.providers.by_name import PROVIDERS
from infra.settings import LOCAL, VENDORS
from store import packs

DOCKER = "docker:"
CONTAINERS = {"shadeform": "Docker", "ssh": "Podman", LOCAL: "Podman"}
"""Providers whose machines boot no image of the user, with the program that runs a container on these machines."""
LOGIN = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")
"""Variables of the login at a private registry, which SkyPilot reads together."""


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


def in_plan(image: str, provider: str, is_rehearsed: bool) -> str:
    """Return the line of the plan about an image."""
    if is_rehearsed:
        where = f"; the scripts run in a container of {image}" if provider in CONTAINERS else f" boots {image}"
        return f"image_id: a rehearsed pod is a folder of this machine, without the image; a rented pod{where}"
    if provider in CONTAINERS:
        return (
            f"image_id: {CONTAINERS[provider]} on the machine runs `setup` and `run` in a container of {image}, with "
            "the network, the GPUs and the folders of the pod; ~ is a folder of the pod (docs/guides/jobs.md)"
        )
    return f"image_id: the pod boots {image}, which needs root and Python 3 (docs/guides/jobs.md)"
