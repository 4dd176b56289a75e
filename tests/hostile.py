"""Hostile documents drawn by hypothesis, for any reader of JSON."""

import json
from typing import Any

from hypothesis import strategies as st

DEEP = b"[" * 200_000
NESTED = b'{"a":' * 900 + b"1" + b"}" * 900
ODD_VALUES = (
    None, True, 0, -1, 1.5, 10**9, 2**63, 2**80, "", "x", "../../x", "/etc/hostname", "a\0b", "\ud800", "x" * 300,
    [], {}, [[]], [None], [0] * 100, {"a": {}}, {"": 0}, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WHOLE = (
    b"", b" ", b"\xff\xfe", b"\xef\xbb\xbf{}", b"null", b"0", b'"x"', b"[]", b"{}", b"[1]", b"nul", b"{", b'{"a":1}{}',
    b"9" * 6000, b'{"a":' + b"9" * 6000 + b"}", b'{"a":1e999}', b'{"a":-Infinity}', b'{"a":NaN}', b'"\\ud800"',
    DEEP, b'{"a":' * 100_000, NESTED, b'{"a":1,"a":2}', b"[" + b"[]," * 1_500_000 + b"[]]", b"{}" + b" " * (17 << 20),
    "{}".encode("utf-16"),
)  # fmt: skip


def _paths(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a document, including the document itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [above, *(path for key, one in inner for path in _paths(one, (*above, key)))]


def _changed(value: Any, path: tuple[Any, ...], change: Any) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], change)
    return copy


def mistyped(good: Any) -> st.SearchStrategy[bytes]:
    """Return a valid document with one value replaced or removed."""

    def one(path: tuple[Any, ...], odd: Any) -> bytes:
        if odd is _GONE and path:
            copy = json.loads(json.dumps(good))
            holder = copy
            for key in path[:-1]:
                holder = holder[key]
            del holder[path[-1]]
            return json.dumps(copy).encode()
        return json.dumps(_changed(good, path, lambda _: None if odd is _GONE else odd)).encode()

    return st.builds(one, st.sampled_from(_paths(good)), st.sampled_from((*ODD_VALUES, _GONE)))


def spliced(good: Any) -> st.SearchStrategy[bytes]:
    """Return a valid document with raw text in place of a value, a duplicate key, or a cut."""
    words = (b"NaN", b"1e999", b"-1e999", b"9" * 6000, b"[" * 100_000, b'"\\udc00"', b'{"a":1,"a":1}', NESTED, b"")

    def one(path: tuple[Any, ...], word: bytes, cut: int) -> bytes:
        text = json.dumps(_changed(good, path, lambda _: "@@@")).encode().replace(b'"@@@"', word)
        return text[: len(text) * cut // 100]

    return st.builds(one, st.sampled_from(_paths(good)), st.sampled_from(words), st.sampled_from((100, 100, 100, 60)))


def documents(good: Any) -> st.SearchStrategy[bytes]:
    """Return hostile documents similar to `good`, and arbitrary bytes."""
    return st.one_of(st.sampled_from(WHOLE), mistyped(good), spliced(good), st.binary(max_size=200))


_GONE = object()
