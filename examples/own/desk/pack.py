"""A pack of your own: who looks after the machines of a group, and a phase `polish` after sft.

cp -r examples/own/desk packs/
"""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="desk",
    about="Show who looks after our machines, and polish a model",
    commands={
        "desk": CommandEntry(where="packs.desk.commands.desk:desk", summary="Show who looks after our machines."),
    },
    command_flags={"launch": "packs.desk.control.settings:PolishFlags"},
    settings="packs.desk.control.settings:DeskSettings",
    doctor_checks={"desk": "packs.desk.control.notes:check"},
    account_notes={"desk": "packs.desk.control.notes:notes"},
    phases={"polish": "packs.desk.records.phases:POLISH"},
    profile_phases={"*": "packs.desk.records.polish_config:phases"},
)
