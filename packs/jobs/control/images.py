"""The container image of a task: which machines run the image, and the refusals of a job file."""

from collections.abc import Collection

from infra.providers.container_images import CONTAINERS, LOGIN, able, boots, name_of, problem
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
