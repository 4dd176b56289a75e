"""The commands. `inv --list` shows them."""

import sys

sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)  # invoke turns caching off, which slows every start

from invoke import Collection  # noqa: E402

from scripts import program, project  # noqa: E402

program.mend()
namespace = Collection(project.check, project.config, project.doctor, project.test)
