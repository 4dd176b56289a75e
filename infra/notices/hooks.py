"""The hooks that notices go to: names, with what stands for them in `.env`.

    SLIPWAY_HOOK_TEAM=slack https://hooks.slack.com/services/...
    SLIPWAY_HOOK_ME=ntfy https://ntfy.sh/my-topic
    SLIPWAY_HOOK_LOG=command cat >> ~/notices.jsonl

In: the names of `--notify` and SLIPWAY_HOOKS. Out: hooks. `desktop` needs no line. The target of a hook is a secret:
it stands in no argument of a process, no message and no record.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.errors import UsageError
from infra.settings import HOOK, Settings

DESKTOP, COMMAND = "desktop", "command"
URLS = ("slack", "discord", "ntfy", "post")
KINDS = (DESKTOP, COMMAND, *URLS)
OLD = "SLIPWAY_NOTIFY"  # the hook that has no name: it is told how runs end


@dataclass(frozen=True)
class Hook:
    name: str
    kind: str
    target: str = field(default="", repr=False)


def split(words: str) -> tuple[str, ...]:
    """Return the names of `team,desktop`."""
    return tuple(dict.fromkeys(filter(None, (one.strip().lower() for one in words.split(",")))))


def for_all(settings: Settings) -> tuple[str, ...]:
    """Return the names of the hooks that are told of everything."""
    return split(settings.hooks)


def check(names: Iterable[str], settings: Settings) -> None:
    """Raise UsageError for a name that stands for nothing, or a line of `.env` that is no hook."""
    for name in names:
        named(name, settings)


def named(name: str, settings: Settings) -> Hook:
    """Return the hook of that name. Raises UsageError."""
    if name == OLD:
        return _unnamed(settings.notify)
    variable = f"{HOOK}{name.upper().replace('-', '_')}"
    said = settings.hook_lines.get(variable, "")
    if not said and name == DESKTOP:
        return Hook(DESKTOP, DESKTOP)
    if not said:
        known = [DESKTOP, *(one.removeprefix(HOOK).lower() for one in settings.hook_lines)]
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(set(known)))}"
        raise UsageError(
            f"--notify {name}: {hint}; a hook is a line of .env such as {variable}=slack https://hooks.slack.com/..."
        )
    kind, _, target = said.partition(" ")
    target = target.strip()
    is_url = target.startswith(("https://", "http://"))
    if kind not in KINDS or kind in URLS and not is_url or kind == COMMAND and not target:
        raise UsageError(f"{variable}: expected one of {', '.join(KINDS)}, then an address or a command")
    return Hook(name, kind, target)


def _unnamed(target: str) -> Hook:
    """Return the hook that SLIPWAY_NOTIFY says: an address that is posted to, or a command."""
    return Hook(OLD, "post" if target.startswith(("https://", "http://")) else COMMAND, target)
