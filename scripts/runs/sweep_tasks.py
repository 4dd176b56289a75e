"""Many runs in one command. What this does stands in `sweep.py`."""

from scripts.cli.invoke_patch import command


@command(
    "scripts.runs.sweep",
    word="file",
    help={
        "file": "YAML: `runs`, a list with a name and flags of launch each; `each`, flags for all; `pods`",
        "pods": "on so many pods at once (ssh: all that are free; local: 1)",
        "provider": "where: local, ssh, or what .env says",
        "dry-run": "show who runs where and stop",
        "yes": "ask nothing",
        "json": "one JSON document on stdout",
    },
)
def sweep(c, file="", pods: int | None = None, provider="", dry_run=False, yes=False, json=False):
    """Run the launches of a file on several pods at once.

    Each pod takes one at a time. Run it again to go on with what is missing.
    """
