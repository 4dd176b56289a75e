"""The container image of a file with its own `run`: booted as the pod, or run by Podman or Docker on the machine."""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.errors import UsageError
from infra.providers import container_images
from infra.providers.container_images import CONTAINERS, boots
from serve.service import Service


@dataclass(frozen=True, kw_only=True)
class ImageUse:
    """A way to run the image of a file, and the providers of the replicas that run the image in this way."""

    candidates: tuple[str, ...]
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


def ways(service: Service, candidates: Sequence[str], is_rehearsed: bool) -> tuple[ImageUse, ...]:
    """Return the ways in which the replicas run the image of a file. Raises UsageError if no provider runs the image.

    The steps of a replica differ between the ways, so a launch tries the offers of one way. The pods of a rehearsal are
    folders of this machine, without a container.
    """
    names, image = tuple(candidates), image_of(service)
    if not image:
        return (ImageUse(candidates=names),)
    problems = _problems(service, names, is_rehearsed)
    usable = [one for one in names if not problems[one]]
    if not usable:
        raise UsageError(f"resources.{problems[names[0]]}")
    booting, containing = (tuple(one for one in usable if boots(one) is is_booted) for is_booted in (True, False))
    found = (ImageUse(candidates=booting, booted=image), ImageUse(candidates=containing, contained=image))
    return tuple(sorted((one for one in found if one.candidates), key=lambda one: names.index(one.candidates[0])))


def able(service: Service, candidates: Sequence[str], is_rehearsed: bool) -> tuple[str, ...]:
    """Return the providers that run the image of a file. Raises UsageError for none."""
    return tuple(one for way in ways(service, candidates, is_rehearsed) for one in way.candidates)


def refusals(service: Service, candidates: Sequence[str]) -> list[str]:
    """Return the refusals of the image of a file. candidates: none for any provider that rents."""
    image = image_of(service)
    problems = [_problem(service, image, one) for one in candidates or ("",)] if image else []
    return [f"resources.{problems[0]}"] if problems and all(problems) else []


def _problems(service: Service, names: Sequence[str], is_rehearsed: bool) -> dict[str, str]:
    """Return the reason of each provider whose machines do not run the image of a file; "" for the others."""
    image = image_of(service)
    return {one: "" if is_rehearsed and one in CONTAINERS else _problem(service, image, one) for one in names}


def _problem(service: Service, image: str, provider: str) -> str:
    """Return the reason why no machine of a provider runs an image; "" if the machines do. provider: "" for any."""
    names = (*service.envs, *service.secrets)
    if provider in CONTAINERS:
        return container_images.part_problem(image, names) or container_images.problem(image, provider)
    return container_images.login_problem(image, names) or (
        container_images.problem(image, provider) if provider else ""
    )


def notes(service: Service, candidates: Sequence[str], is_rehearsed: bool) -> list[str]:
    """Return the lines of the plan about the image of a file: each way, and the providers left out with the reason."""
    if not image_of(service):
        return []
    found, said, names = ways(service, candidates, is_rehearsed), [], (*service.envs, *service.secrets)
    for one in found:
        text = container_images.in_plan(one.image, one.candidates[0], is_rehearsed, names)
        said.append(f"{', '.join(one.candidates)}: {text}" if len(found) > 1 else text)
    problems = _problems(service, candidates, is_rehearsed)
    for problem in dict.fromkeys(filter(None, problems.values())):
        left_out = [one for one in candidates if problems[one] == problem]
        said.append(f"{', '.join(left_out)}: left out: {problem}")
    return said
