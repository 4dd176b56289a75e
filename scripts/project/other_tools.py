"""docs/reference/other-tools.md: the command lines of other tools' guides, each with the equivalent Slipway command.

The input is the files in tests/sources/ with the lines of each guide; the output is the page. tests/sources/lines.py
runs the lines.
"""

from dataclasses import dataclass, field
from typing import Any

from infra import strict_yaml
from infra.checkout import ROOT

FOLDER = ROOT / "tests" / "sources"
GUIDES = {
    "skypilot_jobs": "SkyPilot's managed jobs",
    "skyserve": "SkyServe",
    "training_guide": "SkyPilot's training guide",
    "lium": "Lium's pods and sweeps",
    "runpod": "RunPod's setup",
    "shadeform": "Shadeform's scripts",
}
HEAD = """# Commands of other tools

Each command line of six guides, and the equivalent Slipway command. The nightly tests run every line free of charge:
against the rehearsal, on one machine, or against a hub on loopback (`python -m tests.sources.lines`). File names are
shown without folders.
"""


@dataclass(frozen=True, kw_only=True)
class GuideLine:
    """A command line of a guide, and the equivalent here."""

    line: str
    typed: str = ""
    practice: str = ""
    shell: str = ""
    reason: str = ""
    says: str = ""
    code: int = 0
    file: dict[str, Any] = field(default_factory=dict)
    pack: str = ""
    """A required pack beside the pack of the command; "" = none."""


def read(guide: str) -> list[GuideLine]:
    """Return the lines of a guide in file order. Raises TypeError for an unknown key."""
    found: list[dict[str, Any]] = strict_yaml.read(FOLDER / f"{guide}.yaml")
    return [GuideLine(**one) for one in found]


def page() -> str:
    """Return the Markdown page."""
    lines = [HEAD]
    for guide, title in GUIDES.items():
        lines += [f"## {title}", "", "| other tool | Slipway |", "| --- | --- |"]
        lines += [f"| {_code(one.line)} | {_here(one)} |" for one in read(guide)]
        lines.append("")
    return "\n".join(lines)


def _here(one: GuideLine) -> str:
    if one.reason:
        return one.reason
    if one.shell:
        return _code(one.shell)
    refused = f"; refused: {one.says}" if one.code == 2 else ""
    return f"{_code(f'./inv {one.typed}')}{refused}"


def _code(text: str) -> str:
    plain = " ".join(text.replace("{home}/", "").replace("{inv}", "./inv").replace("{endpoint}", "$ENDPOINT").split())
    return f"`{plain}`".replace("|", "\\|")
