"""The command `serve.export`: a service file for `sky serve up`."""

import sys
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.session import open_journal
from serve import revision, skyserve_export
from serve import service as service_file
from serve.policy import service_state


@dataclass(frozen=True, kw_only=True)
class ServeExportFlags:
    config: str = flag(
        "", "a service file, or the name of a running service (default serve/service.yaml)", unit="FILE", word=True
    )
    engine: str = flag("skyserve", "format of the file; skyserve is the only format")
    model: str = flag(
        "",
        "address from which the machines load the weights: hf://user/repo, s3://bucket/folder, "
        "gs://bucket/folder or a folder",
    )
    out: str = flag("", "file to write (default: stdout)", unit="FILE")


@command(record=ServeExportFlags, example="inv serve.export demo --model hf://user/repo --out service.yaml")
def export(spec: ServeExportFlags) -> None:
    """Write a service file for `sky serve up`.

    SkyServe of SkyPilot can then run the service.
    """
    import yaml

    if spec.engine != "skyserve":
        raise UsageError(f"--engine {spec.engine} is unknown; known: skyserve")
    settings = context.settings()
    with open_journal(settings) as journal:
        row = service_rows.find(journal, spec.config) if spec.config else None
    service = (
        service_state.parse_desired(row.wanted).newest.service
        if row
        else service_file.load(revision.path_of(spec.config))
    )
    document = skyserve_export.to_skyserve(service, spec.model)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    if spec.out:
        try:
            Path(spec.out).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {spec.out}: {error.strerror}") from None
        render.say(f"sky serve up {spec.out} --service-name {service.file.name or 'slipway'}")
    else:
        sys.stdout.write(text)
