"""The container image of a task: booted as the pod, or run by Podman or Docker on a machine without such a choice."""

import shutil
from collections.abc import Collection

from infra.selection.pod_images import boots_images
from infra.settings import LOCAL, MARKET, VENDORS
from packs.jobs.control.job_file import JobTask
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.schema import Resources, alternatives

DOCKER = "docker:"
CONTAINERS = {"shadeform": "Docker", "ssh": "Podman", LOCAL: "Podman"}
"""Providers whose machines boot no image of the user, with the program that runs a container on these machines."""
LOGIN = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")
"""Variables of the login at a private registry, which SkyPilot reads together."""


def image_of(said: Resources) -> str:
    """Return the container image of the resources; "" without one, or for an image of a cloud's own machines."""
    return str(said.image_id).removeprefix(DOCKER) if str(said.image_id).startswith(DOCKER) else ""


def first_image(task: JobTask) -> str:
    """Return the container image of the first alternative with one; "" without one."""
    return next(filter(None, map(image_of, alternatives(task.resources))), "")


def of_container(task: JobTask, provider: str, is_rehearsed: bool) -> str:
    """Return the image of the container for the scripts of a task; "" for scripts that run on the machine itself."""
    return first_image(task) if provider in CONTAINERS and not is_rehearsed else ""


def refuse(task: JobTask, provider: str, is_rehearsed: bool, refused: Refusals) -> None:
    """Collect the image of a task that no machine of the provider runs. `provider`: "" for any."""
    image = first_image(task)
    refuse_login(task, {*task.envs, *task.secrets}, refused)
    if not image or is_rehearsed or provider in ("", MARKET) or boots_images(provider):
        return
    line = task.document.line("resources", "image_id")
    able = " or ".join(f"--provider {name}" for name in VENDORS if boots_images(name))
    if provider not in CONTAINERS:
        refused.add(
            line,
            f"image_id: machines of {provider} run no container image; install the packages of {image} in `setup`, "
            f"or add {able}",
        )
    elif provider == LOCAL and not shutil.which("podman"):
        refused.add(
            line,
            f"image_id: Podman runs {image} on your own machines, and this machine has no podman; install it (Debian, "
            f"Ubuntu: apt install podman), or add {able}",
        )
    elif task.environment:
        refused.add(
            task.document.line("slipway", "environment"),
            f"slipway.environment: a container of {image} has the packages of the image only; remove this key or "
            f"image_id, or add {able}",
        )


def refuse_login(task: JobTask, names: Collection[str], refused: Refusals) -> None:
    """Collect the image of a task with variables for a login, because only SkyPilot logs in at a registry."""
    image, found = first_image(task), [one for one in LOGIN if one in names]
    if image and found:
        refused.add(
            task.document.line("resources", "image_id"),
            f"image_id: Slipway logs in at no registry, so {', '.join(found)} would have no effect, and the machine "
            f"would look for {image} at the public registry; remove these variables and name a public image, install "
            "the packages in `setup`, or add --provider skypilot",
        )


def refuse_part_of_login(task: JobTask, names: Collection[str], refused: Refusals) -> None:
    """Collect the image of a task with only a part of the variables for a login at a registry."""
    missing = [one for one in LOGIN if one not in names]
    if first_image(task) and 0 < len(missing) < len(LOGIN):
        refused.add(
            task.document.line("resources", "image_id"),
            f"image_id: SkyPilot logs in with {', '.join(LOGIN)} together; set {', '.join(missing)} too",
        )


def in_plan(image: str, provider: str, is_rehearsed: bool) -> str:
    """Return the line of the plan about the image of a task."""
    if is_rehearsed:
        where = f"; the scripts run in a container of {image}" if provider in CONTAINERS else f" boots {image}"
        return f"image_id: a rehearsed pod is a folder of this machine, without the image; a rented pod{where}"
    if provider in CONTAINERS:
        return (
            f"image_id: {CONTAINERS[provider]} on the machine runs `setup` and `run` in a container of {image}, with "
            "the network, the GPUs and the folders of the pod; ~ is a folder of the pod (docs/guides/jobs.md)"
        )
    return f"image_id: the pod boots {image}, which needs root and Python 3 (docs/guides/jobs.md)"
