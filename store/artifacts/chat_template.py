"""The chat templates beside a tokenizer: separate files, or a value in tokenizer_config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from store import outside
from store.outside import UnusableDocument

FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
FOLDER, SUFFIX = "additional_chat_templates", ".jinja"  # named templates besides the default
MOST_BYTES = 4 * outside.MIB


def templates_of(folder: Path) -> dict[str, str]:
    """Return the chat templates of a folder by name, as `transformers` finds them; {} without templates.

    Template files take precedence over tokenizer_config.json. Raise UnusableDocument for an invalid file.
    """
    return template_files(folder) or templates_in(config_of(folder, CONFIG))


def template_of(folder: Path) -> str:
    """Return the default chat template of a folder, or "" if the folder has none. Raise UnusableDocument."""
    return usual(templates_of(folder))


def usual(templates: Mapping[str, str]) -> str:
    """Return the template for conversations: `default`, else the first template, or "" without templates."""
    return templates.get("default") or next(iter(templates.values()), "")


def template_files(folder: Path) -> dict[str, str]:
    """Return the chat templates stored as separate files, by name. Raise UnusableDocument."""
    paths = {"default": folder / FILE}
    paths |= {path.name.removesuffix(SUFFIX): path for path in sorted((folder / FOLDER).glob(f"*{SUFFIX}"))}
    found = {}
    for name, path in paths.items():
        try:
            if path.is_file():
                found[name] = outside.content(path, MOST_BYTES).decode()
        except (OSError, ValueError) as error:
            raise UnusableDocument(f"{path}: {error}") from None
    return found


def copy_template_files(source: Path, target: Path) -> None:
    """Copy the template files of the folder `source` to `target`. Raise UnusableDocument."""
    for name, text in template_files(source).items():
        path = target / FILE if name == "default" else target / FOLDER / f"{name}{SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


def templates_in(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates in the content of a tokenizer_config.json, by name; {} without templates."""
    said = tokenizer_config.get("chat_template")
    if isinstance(said, list):
        named = ((one.get("name"), one.get("template")) for one in said if isinstance(one, dict))
        return {str(name): text for name, text in named if isinstance(text, str)}
    return {"default": said} if isinstance(said, str) and said else {}


def named_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of the named tokens (`bos_token` and so on), as `transformers` finds them.

    A tokenizer_config.json with `added_tokens_decoder` is complete. For older files, special_tokens_map.json overrides
    the values. Raise UnusableDocument.
    """
    said = config_of(folder, CONFIG)
    if "added_tokens_decoder" not in said:
        said = {**said, **config_of(folder, SPECIAL_MAP)}
    extra = said.get("extra_special_tokens")
    said = {**said, **(extra if isinstance(extra, dict) else {})}
    return {name: text for name, one in said.items() if name.endswith("_token") and (text := _text(one))}


def _text(said: Any) -> str:
    """Return the text of a token, given as a plain string or as an object with `content`; "" for other values."""
    said = said.get("content") if isinstance(said, dict) else said
    return said if isinstance(said, str) else ""


def config_of(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a small JSON file; {} if the file does not exist. Raise UnusableDocument."""
    path = folder / name
    try:
        return outside.load(path, MOST_BYTES, integer=outside.clamped) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UnusableDocument(f"{path}: {error}") from None
