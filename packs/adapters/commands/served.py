"""The command `serve.adapters`: the adapters of a running service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.services import variants
from infra.flags import flag
from packs.adapters.control.serving import ServedAdapterFlags, change, read_named
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags
from serve.policy.replica_states import State
from serve.policy.service_state import ServiceRecord, WantedService
from serve.processes import controller_client
from store import terminal


@dataclass(frozen=True, kw_only=True)
class AdaptersFlags(OneServiceFlags, Output):
    add: Mapping[str, str] = flag(
        {},
        "load an adapter: an artifact, a folder or hf://user/repo; repeatable",
        unit="NAME=ADAPTER",
        read=read_named,
    )
    remove: tuple[str, ...] = flag((), "unload an adapter; running answers continue; repeatable", unit="NAME")


@command(record=AdaptersFlags, example="inv serve.adapters demo --add legal=chatsft_checkpoints/legal")
def adapters(spec: AdaptersFlags) -> None:
    """List, load or unload the adapters of a running service.

    No replica restarts, and no request is dropped. Clients choose an adapter by `model`.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(spec.name, journal)
        added = ServedAdapterFlags(adapter=spec.add)
        named = {one: (added, source) for one, source in spec.add.items()}
        with terminal.show_while("reading the adapters"):
            wanted, seen = change(name, named, spec.remove, settings, journal, render.tell)
        if spec.add or spec.remove:
            with terminal.show_while(f"{name}: waiting for the replicas"):
                wanted, seen = variants.await_loaded(name, settings, journal, render.tell)
    show(name, wanted, seen, spec.json)


def show(name: str, wanted: WantedService, seen: ServiceRecord, as_json: bool) -> None:
    """Print the adapters of a service, and the replicas that have each."""
    ready = [one for one in seen.members if one.state is State.READY]
    rows, errors = list[dict[str, Any]](), variants.last_errors(wanted, seen)
    for one, variant in wanted.variants.items():
        has = [member.run for member in ready if member.variants.get(one) == variant.identity]
        problem = next((m.refused[variant.identity] for m in ready if variant.identity in m.refused), "")
        problem = problem or errors.get(one, "")
        rows.append({"name": one, "source": variant.title, "rank": variant.rank, "replicas": has, "problem": problem})
    if as_json:
        print_json({"service": name, "adapters": rows, "ready_replicas": len(ready)})
    elif not rows:
        render.say(f"{name}: no adapters; to load an adapter: inv serve.adapters {name} --add NAME=ADAPTER")
    else:
        table = [("adapter", "loaded by", "rank", "source", "problem")]
        for row in rows:
            count = f"{len(row['replicas'])} of {len(ready)} replicas"
            table.append((row["name"], count, str(row["rank"]), row["source"], row["problem"]))
        print(render.clean(columns(table)))
