"""The pack `control_host`: a user-owned always-on machine that runs the commands and follows the runs."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="control_host",
    about="Let an always-on machine run commands and follow runs",
    settings="packs.control_host.control.settings:ControlHostSettings",
    line_flags={"--control": "packs.control_host.commands.line_flags:ThroughHost"},
    always_on={"control_host": "packs.control_host.control.always_on:ControlHostMachine"},
    commands={
        "control.up": CommandEntry(
            where="packs.control_host.commands.up:up",
            summary="Move the journal and its keys to an always-on machine.",
        ),
        "control.down": CommandEntry(
            where="packs.control_host.commands.down:down",
            summary="Bring the journal and its keys home from the control host.",
        ),
        "control.start": CommandEntry(
            where="packs.control_host.commands.start:start",
            summary="Restart the processes that look after runs and services.",
        ),
        "control.pull": CommandEntry(
            where="packs.control_host.commands.pull:pull",
            summary="Copy files from the control host to this machine.",
        ),
    },
)
