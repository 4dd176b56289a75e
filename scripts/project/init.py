"""The command `inv init`: questions for a new user, and an `.env` file with the answers.

The input is typed at a terminal, without echo for keys; the output is lines of `.env`. The command writes each line
right after validation, so a user who quits early keeps all answers so far.
"""

import getpass
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flows.installation import env_file, first_keys
from flows.installation.first_keys import NAMES, STORE_KEYS, KeyCheck, Verdict
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from infra.settings import VENDORS, Settings
from scripts.cli import context, render
from scripts.cli.command import command
from store import credentials, terminal

TRIES = 3
LOCAL_STORE = "var/artifacts"
BY_HAND = """stdin is not a terminal, so init cannot ask for keys without showing them. By hand:
  cp .env.example .env && chmod 600 .env    # ignored by git; comments explain each line
  ./inv doctor --provider runpod            # checks the key with the vendor
Without a key, all work runs on this machine: ./inv launch --phase sft"""


class QuestionsEnded(Exception):
    """Raised when the user ends the questions (Ctrl-D)."""


@dataclass(frozen=True, kw_only=True)
class InitFlags:
    provider: str = flag("", "ask only for the key of this vendor: runpod, lium or shadeform", word=True)


@command(record=InitFlags, world="", is_here=True, example="inv init runpod")
def init(spec: InitFlags) -> None:
    """Ask for keys and a store, check them, and write .env.

    Keys are checked with their vendors before they are written, and never shown. Existing entries are kept.
    """
    if spec.provider not in ("", *VENDORS):
        raise UsageError(f"--provider is {spec.provider!r}; known: {', '.join(VENDORS)}")
    if not sys.stdin.isatty():
        raise UsageError(BY_HAND)
    render.say(f"Answers go into {ROOT / env_file.NAME}, which git ignores and only you can read.")
    render.say("Typed keys are not shown. Enter: skip, or keep the present value. Ctrl-D: finish.")
    try:
        for name in [spec.provider] if spec.provider else VENDORS:
            ask_key(name)
        if not spec.provider:
            ask_for_store()
    except QuestionsEnded:
        render.say("")
    except KeyboardInterrupt:
        render.say(f"\nstopped; earlier answers are kept in {env_file.NAME}")
        raise
    env_file.set_variables(ROOT, {})  # also restrict the permissions of an existing file
    tell_what_next(context.settings())


def ask_key(name: str) -> None:
    """Ask for the key of a vendor until the user enters a good key or skips the vendor."""
    variable = VENDORS[name].upper()
    settings = context.settings()
    known, source = getattr(settings, VENDORS[name]), settings.sources[VENDORS[name]]
    render.say(f"\n{NAMES[name]}")
    if known:
        render.tell(f"  {variable} is set, from {source}: {in_words(check_key(name, known, settings))}")
    if known and source not in (".env", "default"):
        render.say(f"  kept; {source} overrides .env")
        return
    kept, file = first_keys.saved(name) if not known else ("", "")
    if kept and agrees(f"  {file} has a key; use this key?"):
        found = check_key(name, kept, settings)
        render.tell(f"  {in_words(found)}")
        if found.verdict is Verdict.GOOD:
            env_file.set_variables(ROOT, {variable: kept})
            render.say("  written")
            return
    for _ in range(TRIES):
        key = read_secret(f"  {variable}{' (Enter keeps it)' if known else ''}: ")
        if not key:
            return
        found = check_key(name, key, settings)
        render.tell(f"  {in_words(found)}")
        if found.verdict is Verdict.GOOD or (found.verdict is Verdict.UNKNOWN and agrees("  keep it unchecked?")):
            env_file.set_variables(ROOT, {variable: key})
            render.say("  written")
            return
    render.say(f"  {TRIES} keys were refused; no key was written for {NAMES[name]}")


def ask_for_store() -> None:
    """Ask for the artifact store until the user enters a writable URI or keeps the current store."""
    render.say("\nStore: the place of models and checkpoints")
    for _ in range(TRIES):
        settings = context.settings()
        is_here = settings.store == str(ROOT / LOCAL_STORE)
        shown = f"{LOCAL_STORE}, on this machine" if is_here else settings.store
        render.say(f"  Present store: {shown}.")
        if settings.sources["store"] not in (".env", "default", "slipway.yaml"):
            render.say(f"  kept; {settings.sources['store']} overrides .env")
            return
        render.say("  Rented pods need a remote store: hf://user/repo, s3://bucket/folder or gs://bucket/folder")
        uri = read_line("  SLIPWAY_STORE (Enter keeps it): ")
        if not uri:
            return
        keys = keys_for(uri, settings)
        with terminal.show_while(f"checking {uri}"):
            found = first_keys.ask_store(uri if "://" in uri else str(ROOT / Path(uri).expanduser()), keys)
        render.tell(f"  {in_words(found)}")
        if found.verdict is Verdict.GOOD or agrees("  use it anyway?"):
            env_file.set_variables(ROOT, {"SLIPWAY_STORE": uri, **keys})
            render.say("  written")
            return


def keys_for(uri: str, settings: Settings) -> Mapping[str, str]:
    """Ask for the missing keys of a store; return the typed keys by variable name."""
    names = STORE_KEYS.get(credentials.kind(uri), ())
    if any(credentials.value_of(one) for one in credentials.KEYS.get(credentials.kind(uri), ())):
        return {}
    return {name: value for name in names if (value := read_secret(f"  {name}: "))}


def check_key(name: str, key: str, settings: Settings) -> KeyCheck:
    with terminal.show_while(f"checking the key with {NAMES[name]}"):
        return first_keys.ask_vendor(name, key, settings)


def in_words(found: KeyCheck) -> str:
    words = {Verdict.GOOD: "good", Verdict.REFUSED: "refused", Verdict.UNKNOWN: "could not be checked"}
    return f"{words[found.verdict]}: {found.message}"


def read_secret(question: str) -> str:
    """Ask without echo and return the answer.

    Raises QuestionsEnded at Ctrl-D, UsageError if the terminal cannot hide input.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass(question, sys.stderr).strip()
    except getpass.GetPassWarning:
        raise UsageError(BY_HAND.replace("stdin is not a terminal", "this terminal shows typed text")) from None
    except EOFError:
        raise QuestionsEnded from None


def read_line(question: str) -> str:
    """Return a typed line. Raises QuestionsEnded at Ctrl-D."""
    print(question, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise QuestionsEnded
    return line.strip()


def agrees(question: str) -> bool:
    return read_line(f"{question} [y/N] ").lower() in ("y", "yes")


def tell_what_next(settings: Settings) -> None:
    keys = [NAMES[name] for name, key in VENDORS.items() if getattr(settings, key)]
    render.say("")
    if not keys:
        render.say("No vendor's key is set; all work runs on this machine, for free.")
        render.say("Next: ./inv launch --phase sft. Prices of vendors: ./inv offers")
        return
    render.say(f"Keys are set for {', '.join(keys)}. Next: ./inv offers --gpu H100")
    if not credentials.kind(settings.store):
        render.say("A rented pod needs a remote store: run ./inv init again, or use --store")
