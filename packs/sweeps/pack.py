"""Pack `sweeps`: runs and compares many trainings with one command."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="sweeps",
    about="Run many trainings on several pods, and compare them",
    commands={
        "sweep": CommandEntry(
            where="packs.sweeps.commands.sweep:sweep", summary="Run many trainings on several pods, and compare them."
        ),
    },
    settings="packs.sweeps.control.settings:SweepSettings",
    run_groups={"sweep": "packs.sweeps.control.groups:Sweeps"},
    schemas={
        "sweep": "packs.sweeps.commands.schemas:sweep",
        "experiment": "packs.sweeps.commands.schemas:experiment",
    },
    file_pages={"sweep": "packs.sweeps.commands.files:lines"},
)
