"""The lines of `inv doctor` about SkyPilot: whether its client is there, and who its API server says that it is."""

from pathlib import Path

from flows.installation.doctor import DoctorLine
from infra.agent.environments import environment
from infra.errors import SlipwayError
from infra.settings import Settings
from packs.skypilot.control.client import ENVIRONMENT
from packs.skypilot.control.managed_jobs import NAME, ManagedJobs


def client(root: Path, settings: Settings) -> DoctorLine:
    """Return whether SkyPilot's client is there; its API server is not asked, which takes seconds."""
    then = f"inv doctor --provider {NAME} asks its API server"
    if environment.find(ENVIRONMENT, root, settings.environments, ""):
        return DoctorLine(NAME, "ok", f"its client is here; {then}")
    return DoctorLine(NAME, "off", f"disabled: its client is not here; {then}, and makes the client's environment")


def server(settings: Settings) -> list[DoctorLine]:
    """Ask SkyPilot's API server who it is; the environment of the client is made where it is not there yet."""
    try:
        return [DoctorLine(NAME, "ok", ManagedJobs.of(settings).account().owner)]
    except SlipwayError as error:
        return [DoctorLine(NAME, "bad", str(error))]
