"""Hooks as receivers of notices, defined by name in `.env`.

    SLIPWAY_HOOK_TEAM=slack https://hooks.slack.com/services/...
    SLIPWAY_HOOK_ME=ntfy https://ntfy.sh/my-topic
    SLIPWAY_HOOK_LOG=command cat >> ~/notices.jsonl

`named` resolves the names of `--notify` and SLIPWAY_HOOKS to hooks. `desktop` needs no line in `.env`. The target of a
hook is a secret and never appears in process arguments, messages or records. `infra.notices.sending` sends a notice.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.errors import UsageError
from infra.settings import HOOK, Settings

DESKTOP, COMMAND = "desktop", "command"
URLS = ("slack", "discord", "ntfy", "post")
KINDS = (DESKTOP, COMMAND, *URLS)
OLD = "SLIPWAY_NOTIFY"  # the unnamed hook, notified when runs end
PATIENCE_S = 30.0


@dataclass(frozen=True)
class Hook:
    name: str
    kind: str
    target: str = field(default="", repr=False)


def split(words: str) -> tuple[str, ...]:
    """Return the distinct names in a comma-separated text such as `team,desktop`."""
    return tuple(dict.fromkeys(filter(None, (one.strip().lower() for one in words.split(",")))))


def for_all(settings: Settings) -> tuple[str, ...]:
    """Return the names of the hooks for every notice."""
    return split(settings.hooks)


def check(names: Iterable[str], settings: Settings) -> None:
    """Raise UsageError for an unknown name or an invalid hook line in `.env`."""
    for name in names:
        named(name, settings)


def named(name: str, settings: Settings) -> Hook:
    """Return the hook with the given name. Raises UsageError."""
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
            f"--notify {name}: {hint}; define a hook by a line of .env such as {variable}=slack https://hooks.slack.com/..."
        )
    kind, _, target = said.partition(" ")
    target = target.strip()
    is_url = target.startswith(("https://", "http://"))
    if kind not in KINDS or kind in URLS and not is_url or kind == COMMAND and not target:
        raise UsageError(f"{variable}: expected one of {', '.join(KINDS)}, then an address or a command")
    return Hook(name, kind, target)


def _unnamed(target: str) -> Hook:
    """Return the hook of SLIPWAY_NOTIFY: a URL to post to, or a command."""
    return Hook(OLD, "post" if target.startswith(("https://", "http://")) else COMMAND, target)
