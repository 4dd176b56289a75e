"""The chat template beside a tokenizer: a file of its own, or a value in tokenizer_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import outside
from store.outside import Unreadable

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
MOST_BYTES = 4 * outside.MIB


def template_of(folder: Path) -> str:
    """Return the chat template of a folder; "" where there is none. Raises Unreadable."""
    path = folder / FILE
    try:
        if path.is_file():
            return outside.content(path, MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from None
    return template_in(config_of(folder, CONFIG))


def template_in(tokenizer_config: Mapping[str, Any]) -> str:
    """Return the chat template that a tokenizer_config.json has; "" for none."""
    said = tokenizer_config.get("chat_template")
    if isinstance(said, list):  # several, by name
        found = {str(one.get("name")): one.get("template") for one in said if isinstance(one, dict)}
        said = found.get("default")
    return said if isinstance(said, str) else ""


def config_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a small JSON file; {} where there is none. Raises Unreadable."""
    path = folder / name
    try:
        return outside.load(path, MOST_BYTES) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: {error}") from None
