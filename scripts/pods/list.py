"""The command `pod.list`: every pod."""

from infra.runs.journal_upkeep import settle
from infra.units import per_hour, rate
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.runs.deploy import about


@command(record=Output, example="inv pod.list")
def list_(spec: Output) -> None:
    """List every pod, also of launches: price, age, purpose."""
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        ops = journal.ops(live=True)
    rows = [about(op, settings) for op in ops]
    if spec.json:
        print_json(rows)
    elif rows:
        table = [("pod", "provider", "id", "state", "USD/h", "age", "what for")]
        for row, op in zip(rows, ops, strict=True):
            about_it = (row["state"], rate(op.rate), render.duration(row["age_s"]), row["for"])
            table.append((row["run"], row["provider"], row["id"] or "?", *about_it))
        print(render.clean(columns(table)))
        total = per_hour(sum(op.rate for op in ops))
        render.say(f"{render.count(len(ops), 'pod')}, {total} together")
    else:
        render.say("no pod exists. Create a pod: inv pod.create")
