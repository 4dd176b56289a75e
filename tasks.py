"""Invoke entry point: the namespace with the commands of the core and of packs. `inv --list` shows the commands."""

import sys

sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # invoke turns caching off, which slows every start

from invoke import Collection  # noqa: E402

from scripts.cli import command, invoke_patch  # noqa: E402
from scripts.commands import COMMANDS  # noqa: E402

invoke_patch.patch_invoke()
namespace = Collection()
command.add(namespace, COMMANDS)
command.add_packs(namespace)
