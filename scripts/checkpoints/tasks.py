"""Checkpoints. What each command does stands in the file of its name."""

from scripts.cli.command import command


@command("scripts.checkpoints.list", "scripts.checkpoints.flags:CkptListFlags", name="list", example="inv ckpt.list")
def ckpt_list(c, spec):
    """List every checkpoint, published or of a live run."""


@command(
    "scripts.checkpoints.show",
    "scripts.checkpoints.flags:CkptShowFlags",
    name="show",
    example="inv ckpt.show chatsft_checkpoints/smoke",
)
def ckpt_show(c, spec):
    """Show what a checkpoint holds.

    Step, time, model, configuration, data position, figures and files.
    """


@command(
    "scripts.checkpoints.status",
    "scripts.checkpoints.flags:CkptStatusFlags",
    name="status",
    example="inv ckpt.status brave-otter-3",
)
def ckpt_status(c, spec):
    """Show what of runs is in their store, and what is pending.

    Pending are checkpoints, and files of folders that a job mounts, which the store does not have yet.
    """


@command(
    "scripts.checkpoints.verify", "scripts.checkpoints.flags:CkptVerifyFlags", name="verify", example="inv ckpt.verify"
)
def ckpt_verify(c, spec):
    """Read every byte of checkpoints, and compare.

    They are read in place. The exit code is 5 when one is damaged.
    """


@command(
    "scripts.checkpoints.pull",
    "scripts.checkpoints.flags:CkptPullFlags",
    name="pull",
    example="inv ckpt.pull --latest --from s3://bucket/runs --to model",
)
def ckpt_pull(c, spec):
    """Bring a checkpoint here from a store, verified."""


@command(
    "scripts.checkpoints.push",
    "scripts.checkpoints.flags:CkptPushFlags",
    name="push",
    example="inv ckpt.push --to hf://user/repo",
)
def ckpt_push(c, spec):
    """Copy artifacts into another store; read each back there.

    Artifacts are checkpoints, the tokenizer and conversations.
    """


@command(
    "scripts.checkpoints.init",
    "scripts.checkpoints.flags:CkptInitFlags",
    name="init",
    world="",
    example="inv ckpt.init --to s3://bucket/runs",
)
def ckpt_init(c, spec):
    """Make the bucket, repository or folder of a store."""
