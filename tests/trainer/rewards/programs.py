"""Programs of untrusted answers, from text files in which a line `### name` starts each program."""

from pathlib import Path


def programs(file: str) -> dict[str, str]:
    """Return the programs of a file in this folder, by name."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    parts = (one.partition("\n") for one in text.split("### ")[1:])
    return {name.strip(): code for name, _, code in parts}
