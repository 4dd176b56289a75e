"""Pack `trackers`: sends the metrics of a training to W&B, MLflow or TensorBoard."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="trackers",
    about="Send the metrics of a training to W&B, MLflow or TensorBoard",
    commands={
        "track.send": CommandEntry(
            where="packs.trackers.commands.send:send",
            summary="Send the metrics that a tracker missed, from this machine.",
        ),
    },
    settings="packs.trackers.control.settings:TrackerSettings",
    trackers={
        "wandb": "packs.trackers.control.named:Wandb",
        "mlflow": "packs.trackers.control.named:Mlflow",
        "tensorboard": "packs.trackers.control.named:Tensorboard",
    },
)
