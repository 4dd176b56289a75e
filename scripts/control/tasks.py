"""The control host: an always-on machine of one's own that works while the laptop is off."""

from scripts.cli.command import APART, command

DOES, FLAGS = "scripts.control.machine", "scripts.control.flags"


@command(DOES, f"{FLAGS}:ControlUpFlags", world=APART, is_here=True, example="inv control.up my-server")
def up(c, spec):
    """Move the journal and its keys to an always-on machine.

    From then on every command runs there, over SSH, and this machine may be off. Run it again to send new keys.
    """


@command(DOES, f"{FLAGS}:ControlDownFlags", world=APART, is_here=True, example="inv control.down")
def down(c, spec):
    """Bring the journal and its keys home from the control host.

    The processes that look after runs there are stopped, and started here.
    """


@command(DOES, f"{FLAGS}:ControlStartFlags", world=APART, example="inv control.start")
def start(c, spec):
    """Restart the processes that look after runs and services.

    A control host does this by itself after a boot, and when somebody connects. A supervisor of other code than this
    checkout's is replaced; runs go on.
    """


@command(DOES, f"{FLAGS}:ControlPullFlags", world=APART, is_here=True, example="inv control.pull var/reports")
def pull(c, spec):
    """Bring a file or a folder here from the control host."""
