"""Being on the machine of a run. What these do stands in `place.py`."""

from scripts.program import command


@command("scripts.place", word="run")
def ssh(c, run=""):
    """A shell in a run's folder, on its machine; `inv ssh RUN -- words` runs words there and leaves with their code."""


@command(
    "scripts.place", word="what", iterable=["what"], help={"what": "RUN and LOCAL:REMOTE ports, such as 6006:6006"}
)
def forward(c, what=None):
    """A port of a run's machine here, on loopback only, until Ctrl-C; TensorBoard: `inv forward RUN 6006:6006`."""


@command(
    "scripts.place",
    word="run",
    help={"plan": "show what would be sent, and send nothing", "json": "one JSON document on stdout"},
)
def sync(c, run="", plan=False, json=False):
    """Send the code to a run's machine again; `--plan` shows files, sizes, what is new, refused and ignored."""


@command("scripts.place", word="run", help={"json": "one JSON document on stdout"})
def pull(c, run="", json=False):
    """Bring home what a run has made so far: artifacts, logs, last words."""
