"""The figures of `tokenizer.eval`, counted again by hand where that can be done."""

import base64
import hashlib
from dataclasses import replace

import pytest

from data import compression, samples
from data.compression import PEERS, CompressionSpec, measure
from data.shards import read, shard_paths
from tests.loopback import serving


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """A folder with files of both others as far as 300 ids, which count as the published ones; their text splits are."""
    for name, peer in PEERS.items():
        words = [bytes([number]) for number in range(256)] + [b"th", b" the", b"12", b"123"][: 2 if name == "gpt-2" else 4]
        raw = b"".join(base64.b64encode(word) + b" %d\n" % rank for rank, word in enumerate(words))
        (tmp_path / peer.file).write_bytes(raw)
        monkeypatch.setitem(PEERS, name, replace(peer, sha256=hashlib.sha256(raw).hexdigest(), vocab_size=len(words)))
    return tmp_path
