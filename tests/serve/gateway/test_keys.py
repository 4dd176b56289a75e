"""API keys of a service: their owners, and keys that are never accepted."""

import hashlib

from serve.gateway import keys


def test_key_shorter_than_16_characters_is_refused_even_if_listed(tmp_path):
    said = {"k": "k", "short": "x" * 15, "long": "x" * 16}
    path = tmp_path / "keys"
    path.write_text("".join(f"{name} {hashlib.sha256(key.encode()).hexdigest()}\n" for name, key in said.items()))
    path.chmod(0o600)
    known = keys.load(path)
    found = {name: known.name_of(f"Bearer {key}".encode()) for name, key in said.items()}
    assert found == {"k": None, "short": None, "long": "long"}
    assert known.name_of(b"Bearer " + b" " * 20 + b"k") is None
    key, line = keys.make("ada")
    assert keys.Keys(dict([line.split()])).name_of(f"bearer {key}".encode()) == "ada"
