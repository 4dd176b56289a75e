"""Huge documents are processed in pieces, with the result of whole processing."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.text import long_documents
from data.text.document_batch import is_blank, replace_invalid_utf8
from data.text.escapes import escape, unescape_giant

ODD = st.text(st.one_of(st.characters(), st.sampled_from('\\\n\r"/u\ud83d\ude00\udc00\ufeff\u2028\x85\U0001f600')))
ROWS = st.dictionaries(
    st.sampled_from(["text", "id", "giant"]), st.one_of(ODD, st.none(), st.lists(ODD), st.integers())
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Treat every document as huge, with piece ends everywhere."""
    monkeypatch.setattr(long_documents, "GIANT", 1)
    monkeypatch.setattr(long_documents, "PIECE", 7)
    monkeypatch.setattr("data.text.document_batch.GIANT", -1)


@given(ROWS, st.booleans(), st.sampled_from([None, 1]))
def test_object_equals_the_result_of_json(row, ascii, indent):
    raw = json.dumps(row, ensure_ascii=ascii, indent=indent).encode("utf-8", "replace")
    expected = json.loads(raw)
    found = long_documents.take_text(bytearray(raw))
    if isinstance(found.get("text"), bytearray):
        expected["text"] = expected["text"].encode("utf-8", "replace")
    assert found == expected


@pytest.mark.parametrize(
    "raw",
    [
        b'{"text": "abc',
        b'{"text": "abc\\"}',
        b'{"text": "ab\\x"}',
        b'{"text": "\\u12"}',
        b'"abcdefghijklmn" 1',
        b"",
        b"{]",
    ],
)
def test_invalid_json_is_refused(raw):
    with pytest.raises(ValueError):
        long_documents.take_text(bytearray(raw))


@given(ODD, ROWS)
def test_json_line_is_read_as_written(text, columns):
    columns.pop("text", None)
    text = text.encode("utf-8", "replace")
    columns = {key: value for key, value in columns.items() if key == "id"}
    line = b"".join(long_documents.json_line(text, columns))
    found = json.loads(line)
    assert (line.count(b"\n"), found.pop("text").encode()) == (1, text)
    assert found == json.loads(json.dumps(columns, ensure_ascii=False).encode("utf-8", "replace"))


@given(ODD)
def test_escapes_are_decoded(text):
    text = text.encode("utf-8", "replace")
    line = bytearray(escape(text.decode()).encode())
    unescape_giant(line)
    assert line == text


@pytest.mark.parametrize("line", [b"wrong \\x", b"wrong at its end \\", "w\\ö".encode()])
def test_line_with_an_impossible_escape_is_refused(line):
    with pytest.raises(ValueError, match="is not an escape that Slipway writes"):
        unescape_giant(bytearray(line))


@given(st.one_of(st.binary(), ODD.map(lambda text: text.encode("utf-8", "replace"))))
def test_invalid_text_is_replaced(raw):
    texts = [raw]
    plain = raw.decode("utf-8", "replace")
    assert replace_invalid_utf8(texts) == (plain.encode() != raw)
    assert bytes(texts[0]) == plain.encode()
    assert is_blank(texts[0]) == (not plain.strip())
