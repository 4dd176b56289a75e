"""The container image of a task: which machines run the image, and the refusals of a job file."""

from collections.abc import Collection

from infra.providers.container_images import (
    CONTAINERS,
    able,
    boots,
    login_problem,
    name_of,
    part_problem,
    problem,
)
from infra.settings import MARKET
from packs.jobs.control.job_file import JobTask
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.schema import alternatives


def first_image(task: JobTask) -> str:
    """Return the container image of the first alternative with one; "" without one."""
    return next((one for said in alternatives(task.resources) if (one := name_of(said.image_id))), "")


def of_container(task: JobTask, provider: str, is_rehearsed: bool) -> str:
    """Return the image of the container for the scripts of a task; "" for scripts that run on the machine itself."""
    return first_image(task) if provider in CONTAINERS and not is_rehearsed else ""


def refuse(task: JobTask, provider: str, is_rehearsed: bool, refused: Refusals) -> None:
    """Collect the image of a task that no machine of the provider runs. `provider`: "" for any."""
    image = first_image(task)
    if provider not in CONTAINERS:
        refuse_login(task, {*task.envs, *task.secrets}, refused)
    if not image or is_rehearsed or provider in ("", MARKET) or boots(provider):
        return
    if why := problem(image, provider):
        refused.add(task.document.line("resources", "image_id"), why)
    elif task.environment:
        refused.add(
            task.document.line("slipway", "environment"),
            f"slipway.environment: a container of {image} has the packages of the image only; remove this key or "
            f"image_id, or add {able()}",
        )


def refuse_login(task: JobTask, names: Collection[str], refused: Refusals) -> None:
    """Collect the image of a task with variables for a login, because a vendor that boots the image has no login."""
    if why := login_problem(first_image(task), names):
        refused.add(task.document.line("resources", "image_id"), why)


def refuse_part_of_login(task: JobTask, names: Collection[str], refused: Refusals) -> None:
    """Collect the image of a task with only a part of the variables for a login at a registry."""
    if why := part_problem(first_image(task), names):
        refused.add(task.document.line("resources", "image_id"), why)
