"""The command `inv track.send`: send the metrics of a run to its trackers again."""

from dataclasses import asdict, dataclass

from invoke import Exit

from infra.flags import flag
from infra.runs.lookup import find_run
from packs.trackers.control import sending
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal


@dataclass(frozen=True, kw_only=True)
class TrackSendFlags(OneRunFlags):
    track: str = flag("", "trackers to send to, such as wandb,mlflow (default: all trackers of the run)", unit="NAMES")


@command(record=TrackSendFlags, example="inv track.send brave-otter-3")
def send(spec: TrackSendFlags) -> None:
    """Send the metrics that a tracker missed, from this machine.

    Settings and keys of the trackers are those of today. A step that the server of a tracker has is not sent again.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
    names = [one.strip() for one in spec.track.split(",") if one.strip()]
    sent = []
    for one in sending.send(op, sending.trackers_of(op, names, settings), settings, render.say):
        sent.append(one)
        has = ", ".join(f"{phase} to step {step}" for phase, step in one.figures.items()) or "no metrics"
        again = f"; to try again: inv track.send {op.run}"
        why = f"; not all metrics were sent ({one.problem}){again}" if one.problem else ""
        render.say(f"{op.run}: {one.tracker} has {has}, {one.link or 'no address'}{why}")
    if spec.json:
        print_json({"run": op.run, "trackers": [asdict(one) for one in sent]})
    if any(one.problem for one in sent):
        raise Exit(code=1)
