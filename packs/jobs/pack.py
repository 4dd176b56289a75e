"""The pack `jobs`: programs of the user's own, from a file in SkyPilot's format or from the command line."""

from store.packs import Pack, PackWork

PACK = Pack(
    name="jobs",
    about="Run programs of your own: job files, --cmd, --script",
    command_flags={
        "launch": "packs.jobs.control.flags:JobFlags",
        "rehearse": "packs.jobs.control.flags:JobFlags",
        "cost": "packs.jobs.control.flags:JobCostFlags",
    },
    works={
        "job": PackWork(
            where="packs.jobs.control.kind:JobFiles",
            file_keys=("run", "setup", "resources", "slipway"),
            about_key="packs.jobs.control.job_file:key_hint",
        ),
    },
    file_pages={"job": "packs.jobs.commands.example_jobs:lines"},
    hints={"config --job": "--config examples/jobs/dlm_train.yaml"},
)
