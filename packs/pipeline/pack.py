"""The pack `pipeline`: a corpus to a trained model on this machine, stage by stage."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="pipeline",
    about="Train a model on a corpus here, in folders of a pod's volume",
    needs=("trackers",),
    commands={
        "pipeline": CommandEntry(
            where="packs.pipeline.commands.pipeline:pipeline", summary="Train a model on a corpus here, stage by stage."
        ),
        "tree": CommandEntry(
            where="packs.pipeline.commands.tree:tree",
            summary="Show the folders of `inv pipeline` and their content.",
        ),
    },
    hints={
        "pipeline --mode": "nothing: inv pipeline always uses the layout of --mode cloud; leave the flag out",
    },
    settings="packs.pipeline.control.settings:PipelineSettings",
    config_paths={"pipeline": "packs.pipeline.control.paths:found"},
)
