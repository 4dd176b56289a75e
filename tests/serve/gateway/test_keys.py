"""API keys of a service: whose they are, and which are never taken."""

import hashlib

from serve.gateway import keys


def test_a_key_of_fewer_than_16_letters_is_refused_whoever_put_its_hash_into_the_file(tmp_path):
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
