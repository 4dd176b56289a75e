"""Lines of `inv doctor` about SkyPilot: the state of the client's environment and the user of the API server."""

from pathlib import Path

from flows.installation.doctor import DoctorLine
from infra.agent.environments import environment
from infra.errors import SlipwayError
from infra.settings import Settings
from packs.skypilot.control.client import ENVIRONMENT
from packs.skypilot.control.managed_jobs import NAME, ManagedJobs


def client(root: Path, settings: Settings) -> DoctorLine:
    """Report whether SkyPilot's client is installed, without a request to the API server, which takes seconds."""
    then = f"inv doctor --provider {NAME} asks the API server"
    if environment.find(ENVIRONMENT, root, settings.environments, ""):
        return DoctorLine(NAME, "ok", f"the client is installed; {then}")
    return DoctorLine(NAME, "off", f"disabled: the client is not installed; {then}, and installs the client first")


def server(settings: Settings) -> list[DoctorLine]:
    """Ask SkyPilot's API server for user and URL; create the client's environment first if missing."""
    try:
        return [DoctorLine(NAME, "ok", ManagedJobs.from_settings(settings).account().owner)]
    except SlipwayError as error:
        return [DoctorLine(NAME, "bad", str(error))]
