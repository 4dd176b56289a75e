"""Programs started by tests, each in a separate file, so that ruff and mypy check the programs."""

from pathlib import Path


def source(name: str) -> str:
    """Return the text of a program, for `python -c` or for a file on a pod."""
    return (Path(__file__).parent / f"{name}.py").read_text()
