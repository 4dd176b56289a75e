"""The command `ssh`: a shell in the folder of a run, on its machine."""

from invoke import Exit

from infra.errors import UsageError
from infra.runs import pods
from infra.runs.lookup import find_run, way
from scripts.cli import context
from scripts.cli.invoke_patch import line_after_dashes
from scripts.cli.session import open_journal
from scripts.pods import ssh_config
from scripts.pods.flags import SshFlags


def ssh(spec: SshFlags) -> None:
    if spec.config:
        if spec.run or line_after_dashes():
            raise UsageError("--config covers every pod; to open a shell, leave it out")
        return ssh_config.config(spec)
    if spec.remove or spec.yes:
        raise UsageError(f"--{'remove' if spec.remove else 'yes'} goes with --config")
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        code = way(settings, op).shell(line_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)
