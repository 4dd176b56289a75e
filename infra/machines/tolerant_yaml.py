"""Reader of an inventory that strict YAML refuses: an entry with an error is left out, and all other entries are read.

`read` returns the document; the value of a pool or of a host with an error is the error.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from infra import strict_yaml
from infra.errors import UsageError


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
    for key, node in top.value if isinstance(top, yaml.MappingNode) else ():
        name = _value(key, ())
        if isinstance(name, (UsageError, dict, list)):
            name = str(key.value)
        found[name] = UsageError(f"{name!r} is given twice") if name in found else _pool(node, texts)
    return found


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
