"""The chat templates and the named tokens beside a tokenizer, in a folder from an untrusted source.

A template is a separate file or a value in tokenizer_config.json.
"""

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from store import untrusted_input
from store.untrusted_input import UnusableDocument

TEMPLATE_FILE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
TEMPLATE_FOLDER, TEMPLATE_SUFFIX = "additional_chat_templates", ".jinja"  # named templates besides the default
TEMPLATE_BYTES = 4 * untrusted_input.MIB


def templates_of(folder: Path) -> dict[str, str]:
    """Return the chat templates of a folder by name, as `transformers` finds them; {} without templates.

    Template files take precedence over tokenizer_config.json. Raise UnusableDocument for an invalid file.
    """
    return template_files(folder) or templates_in(load_if_present(folder, TOKENIZER_CONFIG))


def template_of(folder: Path) -> str:
    """Return the default chat template of a folder, or "" if the folder has none. Raise UnusableDocument."""
    return default_template(templates_of(folder))


def default_template(templates: Mapping[str, str]) -> str:
    """Return the template for conversations: `default`, else the first template, or "" without templates."""
    return templates.get("default") or next(iter(templates.values()), "")


def template_paths(names: Collection[str]) -> dict[str, str]:
    """Return the paths of the template files among the files of a model, by the names of the templates."""
    found = {"default": TEMPLATE_FILE} if TEMPLATE_FILE in names else {}
    more = re.compile(rf"{TEMPLATE_FOLDER}/([^/]+){re.escape(TEMPLATE_SUFFIX)}")
    return found | {match[1]: match[0] for one in sorted(names) if (match := more.fullmatch(one))}


def template_files(folder: Path) -> dict[str, str]:
    """Return the chat templates stored as separate files, by name. Raise UnusableDocument."""
    paths = {"default": folder / TEMPLATE_FILE}
    paths |= {
        path.name.removesuffix(TEMPLATE_SUFFIX): path
        for path in sorted((folder / TEMPLATE_FOLDER).glob(f"*{TEMPLATE_SUFFIX}"))
    }
    found = {}
    for name, path in paths.items():
        try:
            if path.is_file():
                found[name] = untrusted_input.content(path, TEMPLATE_BYTES).decode()
        except (OSError, ValueError) as error:
            raise UnusableDocument(f"{path}: {error}") from None
    return found


def copy_template_files(source: Path, target: Path) -> None:
    """Copy the template files of the folder `source` to `target`. Raise UnusableDocument."""
    for name, text in template_files(source).items():
        path = target / TEMPLATE_FILE if name == "default" else target / TEMPLATE_FOLDER / f"{name}{TEMPLATE_SUFFIX}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


def templates_in(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates in the content of a tokenizer_config.json, by name; {} without templates."""
    said = tokenizer_config.get("chat_template")
    if isinstance(said, list):
        named = ((one.get("name"), one.get("template")) for one in said if isinstance(one, dict))
        return {str(name): text for name, text in named if isinstance(text, str)}
    if isinstance(said, dict):
        return {str(name): text for name, text in said.items() if isinstance(text, str)}
    return {"default": said} if isinstance(said, str) and said else {}


def named_tokens(folder: Path) -> dict[str, str]:
    """Return the texts of the named tokens (`bos_token` and so on), as `transformers` finds them.

    A tokenizer_config.json with `added_tokens_decoder` is complete. For older files, special_tokens_map.json overrides
    the values. Raise UnusableDocument.
    """
    return named_in(load_if_present(folder, TOKENIZER_CONFIG), lambda: load_if_present(folder, SPECIAL_MAP))


def named_in(said: Mapping[str, Any], special_map: Callable[[], Mapping[str, Any]]) -> dict[str, str]:
    """Return the texts of the named tokens in the content of a tokenizer_config.json; see `named_tokens`."""
    if "added_tokens_decoder" not in said:
        said = {**said, **special_map()}
    extra = said.get("extra_special_tokens")
    said = {**said, **(extra if isinstance(extra, dict) else {})}
    return {name: text for name, one in said.items() if name.endswith("_token") and (text := _template_text(one))}


def _template_text(said: Any) -> str:
    """Return the text of a token, given as a plain string or as an object with `content`; "" for other values."""
    said = said.get("content") if isinstance(said, dict) else said
    return said if isinstance(said, str) else ""


def load_if_present(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a small JSON file; {} if the file does not exist. Raise UnusableDocument."""
    path = folder / name
    try:
        return untrusted_input.load(path, TEMPLATE_BYTES, integer=untrusted_input.clamped) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UnusableDocument(f"{path}: {error}") from None
