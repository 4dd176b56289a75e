"""The command `ssh`: a shell in a run's folder on the run's machine."""

from dataclasses import dataclass

from invoke import Exit

from infra.errors import UsageError
from infra.flags import flag
from infra.runs import pods
from infra.runs.lookup import find_run, transport_to
from scripts.cli import context
from scripts.cli.command import command
from scripts.cli.flags import LAST_RUN, Questions
from scripts.cli.invoke_patch import line_after_dashes
from scripts.cli.session import open_journal
from scripts.pods import ssh_config

NAMES = "Names for ssh"


@dataclass(frozen=True, kw_only=True)
class SshFlags(Questions):
    run: str = flag("", LAST_RUN, word=True)
    config: bool = flag(
        False,
        "write an SSH configuration with every pod, and show the line of ~/.ssh/config that includes the "
        "configuration; then ssh RUN, scp, editors and notebooks know pods by name",
        group=NAMES,
    )
    remove: bool = flag(
        False, "--config: remove the SSH configuration, and the line that includes the configuration", group=NAMES
    )


@command(record=SshFlags, example="inv ssh brave-otter-3 -- nvidia-smi")
def ssh(spec: SshFlags) -> None:
    """Open a shell in a run's folder, on its machine.

    `inv ssh RUN -- COMMAND` runs a command on the machine and exits with the exit code of the command. After --config,
    plain `ssh RUN` works too, with the pod's own key and host key.
    """
    if spec.config:
        if spec.run or line_after_dashes():
            raise UsageError("--config covers every pod and opens no shell. To open a shell, leave out --config")
        return ssh_config.config(spec.remove, spec.yes)
    if spec.remove or spec.yes:
        raise UsageError(f"--{'remove' if spec.remove else 'yes'} needs --config")
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        code = transport_to(settings, op).shell(line_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)
