"""Reader of an inventory that strict YAML refuses: an entry with an error is left out, and all other entries are read.

`read` returns the document; the value of a pool or of a host with an error is the error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from infra import strict_yaml
from infra.errors import UsageError

MERGE = "tag:yaml.org,2002:merge"


def read(path: Path, texts: Sequence[str] = ()) -> dict[Any, Any]:
    """Return the content of a file of pools; `texts` as in `strict_yaml.read`.

    Raises UsageError for a file that is no YAML mapping.
    """
    text = strict_yaml.content(path)
    try:
        strict_yaml.refuse_bombs(path, text)
        top = yaml.compose(text, strict_yaml.Loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}{strict_yaml.at(error)}: {strict_yaml.what(error)}") from None
    found: dict[Any, Any] = {}
    if not isinstance(top, yaml.MappingNode):
        return found
    merged, own = _entries(top)
    for key, node in own:
        name = _name(key)
        found[name] = UsageError(f"{name!r} is given twice") if name in found else _pool(node, texts)
    return {**{_name(key): _pool(node, texts) for key, node in merged}, **found}


def _entries(top: yaml.MappingNode) -> tuple[list[tuple[yaml.Node, yaml.Node]], list[tuple[yaml.Node, yaml.Node]]]:
    """Return the entries of merge keys, and the own entries of a mapping; a merge key of no mapping is an own entry."""
    merges = [pair for pair in top.value if pair[0].tag == MERGE]
    merged = yaml.MappingNode(top.tag, list(merges), top.start_mark)
    try:
        yaml.SafeLoader("").flatten_mapping(merged)
    except yaml.YAMLError:
        return [], top.value
    return merged.value, [pair for pair in top.value if pair not in merges]


def _name(key: yaml.Node) -> Any:
    name = _value(key, ())
    return str(key.value) if isinstance(name, (UsageError, dict, list)) else name


def _pool(node: yaml.Node, texts: Sequence[str]) -> Any:
    """Return the value of a pool, with an error in place of each host with an error; or the error of the pool."""
    pairs = list(node.value)  # the loader replaces merge keys in the node
    whole = _value(node, texts)
    if not isinstance(whole, UsageError) or not isinstance(node, yaml.MappingNode):
        return whole
    hosts = [value for key, value in pairs if key.value == "hosts" and isinstance(value, yaml.SequenceNode)]
    rest = _value(yaml.MappingNode(node.tag, [pair for pair in pairs if pair[1] not in hosts], node.start_mark), texts)
    return (
        {**rest, "hosts": [_value(one, texts) for one in hosts[0].value]}
        if len(hosts) == 1 and type(rest) is dict
        else whole
    )


def _value(node: yaml.Node, texts: Sequence[str]) -> Any:
    """Return the value of a node, or the UsageError that says why the node has no value."""
    loader = strict_yaml.Loader("", texts)
    try:
        return loader.construct_document(node)
    except Exception as error:  # PyYAML raises built-in exceptions for many scalars
        line = getattr(error, "problem_mark", None) or node.start_mark
        return UsageError(f"line {line.line + 1}: {strict_yaml.what(error)}")
    finally:
        loader.dispose()
