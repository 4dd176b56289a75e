"""Pack `skypilot`: each run is a managed job of SkyPilot."""

from store.packs import Pack, PackProvider

PACK = Pack(
    name="skypilot",
    about="Submit runs as managed jobs of SkyPilot",
    providers={
        "skypilot": PackProvider(
            where="packs.skypilot.control.managed_jobs:ManagedJobs",
            is_run_engine=True,
            doctor="packs.skypilot.control.doctor:server",
        ),
    },
    doctor_checks={"skypilot": "packs.skypilot.control.doctor:client"},
)
