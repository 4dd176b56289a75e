"""The command `serve.key`: the API keys of a service."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from infra.names import check_name
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags
from serve.gateway import keys
from serve.processes import controller_client, controller_process


@dataclass(frozen=True, kw_only=True)
class KeyFlags(OneServiceFlags, Output):
    for_: str = flag("", "name of the user of the key")
    drop: bool = flag(False, "revoke that key")
    model: tuple[str, ...] = flag(
        (), "a model or an adapter of the service for the new key, which then gives no others; repeatable", unit="NAME"
    )


@command(record=KeyFlags, example="inv serve.key demo --for ada")
def key(spec: KeyFlags) -> None:
    """Create, list or revoke the API keys of a service.

    --for NAME creates a key, and with --drop revokes the key. A new key is printed once; only a hash is stored.
    """
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        known = [one.name for one in service_rows.list_services(journal)]
        name = check_name(name) if name else controller_client.find("", journal)
    if spec.drop and not spec.for_:
        raise UsageError("--drop requires --for NAME")
    path = controller_process.ServicePaths.for_service(settings, name).keys
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    limits = {line.split()[0]: keys.models_in(line) for line in lines if line.strip() and not line.startswith("#")}
    names = [*limits]
    if spec.model and (spec.drop or not spec.for_):
        raise UsageError("--model is for a new key: inv serve.key NAME --for USER --model MODEL")
    if not spec.for_:
        if spec.json:
            print_json({"service": name, "keys": names, "models": {one: of for one, of in limits.items() if of}})
        else:
            shown = [one + (f" (only {', '.join(of)})" if of else "") for one, of in limits.items()]
            render.say(f"{name}: {', '.join(shown) or 'no keys; clients need no key'}")
        return
    if spec.drop and spec.for_ not in names:
        raise UsageError(f"{name} has no key for {spec.for_}; available: {', '.join(names) or 'none'}")
    if spec.drop and len(names) == 1 and name in known:
        raise UsageError(
            f"{name} has only this API key, and without a key the endpoint would be public; the key was "
            f"not revoked. Create a second key first: inv serve.key {name} --for NAME"
        )
    if not spec.drop and spec.for_ in names:
        raise UsageError(
            f"{spec.for_} already has a key for {name}, stored as a hash only. Revoke the key first: inv "
            f"serve.key {name} --for {spec.for_} --drop"
        )
    lines = [line for line in lines if line.split()[:1] != [spec.for_]]
    made = ""
    if not spec.drop:
        made, line = keys.make(spec.for_, spec.model)
        lines.append(line)
    from infra.agent.job import write_durably

    write_durably(path, "".join(f"{line}\n" for line in lines), 0o600)
    locks_after_s = keys.COUNTS_AFTER_S if name in known else None
    if spec.json:
        print_json({"service": name, "for": spec.for_, "key": made or None, "locks_after_s": locks_after_s})
    elif spec.drop:
        after = "" if locks_after_s is None else f" within {render.duration(locks_after_s)}"
        render.say(f"{name}: the key of {spec.for_} is revoked{after}")
    else:
        render.say(f"{name}: new key of {spec.for_}, shown only once:")
        print(made)
        if not names:
            render.say(key_enforcement_note(name, locks_after_s))


def key_enforcement_note(name: str, after_s: float | None) -> str:
    """Return a note on when clients without a key are refused; `after_s`: None if the service does not run."""
    if after_s is None:
        return f"{name} is not running. After the start, the gateway refuses clients without a key (status 401)"
    return (
        f"{name} reads the keys within {render.duration(after_s)}. Until then clients need no key; "
        "afterwards the gateway refuses clients without a key (status 401)"
    )
