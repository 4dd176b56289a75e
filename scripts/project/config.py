"""The command `config`: every setting, a recipe, or the schema of a file."""

from dataclasses import dataclass

from infra.checkout import ROOT
from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from store import packs


@dataclass(frozen=True, kw_only=True)
class ConfigFlags(Output):
    schema: str = flag(
        "", f"print the JSON Schema of a file: launch, pod, service, {', '.join(packs.words('schemas'))}"
    )
    profile: str = flag("", "show a complete recipe instead: a name such as runpod_2b, or a .yaml file")
    config: str = flag("", "check which files named in a recipe, a job file or a file of flags exist", unit="FILE")
    params: bool = flag(False, "show only the number of parameters of the model")


@command(record=ConfigFlags, world="", example="inv config --schema launch")
def config(spec: ConfigFlags) -> None:
    """Show every setting, with value and source.

    With --profile the command shows a recipe, with --schema the JSON Schema of a file, and with --config which of the
    files named in a file exist.
    """
    from infra.settings import Settings

    if spec.config:
        from scripts.data import found_paths

        found_paths.show(spec.config, spec.json)
        return
    if spec.profile or spec.params:
        from scripts.models.fit import show

        show(spec.profile or Settings.load(ROOT).profile, spec.params, spec.json)
        return
    if spec.schema:
        from scripts.project import schemas

        print_json(schemas.schema(spec.schema))
        return
    shown = Settings.load(ROOT).list_settings()
    if spec.json:
        print_json({one.name: one for one in shown})
    else:
        print(columns([(one.name, one.value, one.source) for one in shown]))
