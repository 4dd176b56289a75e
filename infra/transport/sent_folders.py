"""Check of a folder of a user before a launch."""

from pathlib import Path

from infra.errors import UsageError
from infra.transport import shipment
from infra.transport.scan.inspector import is_checkout


def check_folder(where: str, folder: Path) -> None:
    """Raise UsageError for a folder that cannot be sent. The files of a checkout of git are left to the launch."""
    if not folder.is_dir():
        raise UsageError(f"{where}: the folder {folder} does not exist")
    if is_checkout(folder.resolve()):
        return
    try:
        shipment.survey(folder)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
