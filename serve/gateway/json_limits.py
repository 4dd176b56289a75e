"""Size check of a JSON document on the raw bytes: parsing can cost a hundred times as much as sending.

`find_excess` returns the reason for a refusal, or "". Each step is a pass over the bytes, in C. Pure.
"""

from serve.request_bounds import Bounds

_NO_MARKS = bytes(one for one in range(256) if one not in b"[]{},")
_ALIKE = bytes.maketrans(b"{}", b"[]")


def find_excess(body: bytes, bounds: Bounds) -> str:
    """Return the reason why a body has too many values or levels, or "". Invalid JSON may pass."""
    values = f"the body holds more than {bounds.max_values} values"
    begun = body.count(b"[") + body.count(b"{")
    are_few = len(body) < bounds.max_values or begun + body.count(b",") < bounds.max_values
    if are_few and begun <= min(bounds.max_depth, bounds.max_containers):
        return ""  # counts marks in texts as well; most bodies end here
    if b"\\" in body:  # each remaining quote then begins or ends a text
        body = body.replace(rb"\\", b"__").replace(rb"\"", b"__")
    if body.count(b'"') > 4 * bounds.max_values:  # a value is at most a text with a name
        return values
    marks = b"".join(body.split(b'"')[::2]).translate(_ALIKE, _NO_MARKS)
    containers = marks.count(b"[")
    if containers > bounds.max_containers:
        return f"the body holds more than {bounds.max_containers} lists and objects"
    if containers + marks.count(b",") >= bounds.max_values:  # every value but the first follows one of these marks
        return values
    left, levels = marks.replace(b",", b""), 0
    while b"[]" in left and levels <= bounds.max_depth:  # remove the innermost level
        left, levels = left.replace(b"[]", b""), levels + 1
    return f"the body is nested deeper than {bounds.max_depth} levels" if levels > bounds.max_depth else ""
