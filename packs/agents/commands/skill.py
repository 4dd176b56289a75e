"""The command `skill`: the rules of AGENTS.md as a skill, in the format that coding agents read."""

from dataclasses import dataclass
from pathlib import Path

from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from scripts.cli import render
from scripts.cli.command import command
from store import local_files

FILE = ROOT / "skills" / "slipway" / "SKILL.md"
MOST_LINES = 200
# Folders of skills, below the home of a user, of agents that read the format of agentskills.io.
HOMES = (".claude", ".codex", ".cursor", ".gemini", ".agents")
HEAD = """---
name: slipway
description: Rent GPUs, train and serve language models with Slipway (`./inv`), within the limits that a person has set.
  Use it for plans with prices, launches, logs, costs, services, and for the reason why a run ended.
---

With an allowance (`SLIPWAY_ALLOWANCE_TOKEN` is set, or a tool server named `slipway` exists), use only the tools of
`./inv mcp`: plan first, then launch or serve_up with the plan_id, and end with down. Without an allowance, these rules
hold.

"""
IN_THE_CODE = "## In the code"  # the rest of AGENTS.md is for changes of Slipway itself


@dataclass(frozen=True, kw_only=True)
class SkillFlags:
    install: bool = flag(False, "copy the skill to the folders of the agents that this user has")
    to: str = flag("", "copy the skill to this folder of skills", unit="DIR")


@command(record=SkillFlags, is_here=True, example="inv skill --install")
def skill(spec: SkillFlags) -> None:
    """Show or copy the rules for coding agents as a skill.

    The skill is generated from the same records as AGENTS.md.
    """
    if not spec.install and not spec.to:
        print(text(), end="")
        return
    found = [Path.home() / name / "skills" for name in HOMES if (Path.home() / name).is_dir()] if spec.install else []
    folders = [Path(spec.to).expanduser()] if spec.to else found
    if not folders:
        known = ", ".join(f"~/{name}" for name in HOMES)
        raise UsageError(f"this user has none of {known}; name a folder of skills: inv skill --to DIR")
    for folder in folders:
        local_files.replace(folder / "slipway" / "SKILL.md", text().encode())
        render.say(f"wrote {folder / 'slipway' / 'SKILL.md'}")


def text() -> str:
    """Return the skill."""
    from scripts.project import reference

    rules = reference.for_agents().split("# For coding agents", 1)[1].split(IN_THE_CODE)[0]
    return HEAD + rules.strip() + "\n"
