"""The container image of a file with its own `run`: booted as the pod, or run by Podman or Docker on the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.errors import UsageError
from infra.providers import container_images
from infra.providers.container_images import CONTAINERS, boots
from serve.service import Service


@dataclass(frozen=True, kw_only=True)
class ImageUse:
    """The providers of the replicas that run the image of a file in the same way."""

    candidates: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """The providers that run the image in a different way, or not at all."""
    booted: str = ""
    """Image of the pods; "" for the image of the vendor."""
    contained: str = ""
    """Image of the container for `setup` and `run`; "" for scripts that run on the machine itself."""

    @property
    def image(self) -> str:
        return self.booted or self.contained


def image_of(service: Service) -> str:
    """Return the image of a file, or of the first alternative with an image; "" without one."""
    said = service.file.resources
    several = [said, *(said.any_of or ()), *(said.ordered or ())]
    return next(filter(None, (container_images.name_of(one.image_id) for one in several)), "")


def use(service: Service, candidates: Sequence[str], is_rehearsed: bool) -> ImageUse:
    """Return how the replicas run the image of a file. Raises UsageError if no provider runs the image.

    The steps of a replica are made before the machine is known, so all providers are of one kind: that of the first.
    The pods of a rehearsal are folders of this machine, without a container.
    """
    names, image = tuple(candidates), image_of(service)
    if not image:
        return ImageUse(candidates=names)
    problems = ["" if is_rehearsed and one in CONTAINERS else _problem(service, image, one) for one in names]
    able = [one for one, problem in zip(names, problems, strict=True) if not problem]
    if not able:
        raise UsageError(f"resources.{problems[0]}")
    is_booted = boots(able[0])
    kept = tuple(one for one in able if boots(one) is is_booted)
    left = tuple(one for one in names if one not in kept)
    way = {"booted": image} if is_booted else {"contained": image}
    return ImageUse(candidates=kept, left_out=left, **way)


def refusals(service: Service, candidates: Sequence[str]) -> list[str]:
    """Return the refusals of the image of a file. candidates: none for any provider that rents."""
    image = image_of(service)
    problems = [_problem(service, image, one) for one in candidates or ("",)] if image else []
    return [f"resources.{problems[0]}"] if problems and all(problems) else []


def _problem(service: Service, image: str, provider: str) -> str:
    """Return the reason why no machine of a provider runs an image; "" if the machines do. provider: "" for any."""
    names = (*service.envs, *service.secrets)
    if provider in CONTAINERS:
        return container_images.part_problem(image, names) or container_images.problem(image, provider)
    return container_images.login_problem(image, names) or (
        container_images.problem(image, provider) if provider else ""
    )


def notes(found: ImageUse, service: Service, is_rehearsed: bool) -> list[str]:
    """Return the lines of the plan about the image of a file."""
    if not found.image:
        return []
    first = found.candidates[0]
    said = [container_images.in_plan(found.image, first, is_rehearsed, (*service.envs, *service.secrets))]
    if found.left_out:
        how = "run the image in a container" if first in CONTAINERS else "boot the image"
        said.append(
            f"{', '.join(found.left_out)}: left out, because machines of {', '.join(found.candidates)} {how}; for the "
            f"others add --provider {found.left_out[0]}"
        )
    return said
