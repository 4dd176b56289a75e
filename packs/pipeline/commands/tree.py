"""The command `inv tree`: list the folders of `inv pipeline` with their content."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from infra.names import check_name
from packs.pipeline.control.settings import PipelineSettings
from packs.pipeline.control.workspace import WORKSPACE, Workspace, content, experiments, order
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json


@dataclass(frozen=True, kw_only=True)
class TreeFlags(Output):
    workspace: str = flag("", WORKSPACE, unit="FOLDER")
    experiment: str = flag("", "only the folders of this experiment")
    provider: str = flag("", "local: only folders of this machine can be shown")


@command(record=TreeFlags, world="", example="inv tree --experiment mine")
def tree(spec: TreeFlags) -> None:
    """Show the folders of `inv pipeline` and their content."""
    if spec.provider not in ("", "local"):
        raise UsageError(
            f"--provider {spec.provider}: inv tree shows folders of this machine; for a pod: inv ssh RUN -- ls"
        )
    ours = context.settings(workspace=spec.workspace).for_pack(PipelineSettings)
    root = ours.workspace
    names = [check_name(spec.experiment)] if spec.experiment else experiments(root) or [ours.experiment]
    spaces = [Workspace(root, name) for name in names]
    places = dict.fromkeys(folder for space in spaces for folder in space.folders)
    found = [(folder, content(folder, root)) for folder in sorted(places, key=lambda one: order(one, root))]
    if spec.json:
        print_json({"workspace": root, "folders": {str(one.relative_to(root)): what for one, what in found}})
    else:
        print(render.clean(columns([(str(root), ""), *((f"  {one.relative_to(root)}", what) for one, what in found)])))
