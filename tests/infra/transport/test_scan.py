"""A push excludes secrets: by name, by form anywhere in a file, and by the values of the user's keys."""

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import UsageError
from infra.transport import shipment
from infra.transport.scan import contents, inspector
from infra.transport.scan.contents import OVERLAP_BYTES, ContentScanner, OwnKey, needles
from infra.transport.scan.inspector import PIECE_BYTES

OWN = "lium-" + "Zq8vT3xKp9LmWn2cRb7y"
PEM = "-----BEGIN {}" + "PRIVATE KEY-----"
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
ACCOUNT = json.dumps({"type": "service_account", "private_key": f"{PEM.format('')}\n{BODY}\n-----END\n"})
SECRETS = {
    "service account": ACCOUNT,
    "service account on one line, in an environment": f"GOOGLE_CREDENTIALS='{ACCOUNT}'",
    "PEM": f"{PEM.format('RSA ')}\n{BODY}\n",
    "PKCS 8, with carriage returns": f"{PEM.format('')}\r\n{BODY}\r\n",
    "encrypted PKCS 8": f"{PEM.format('ENCRYPTED ')}\n{BODY}\n",
    "OpenSSH, indented in YAML": f"key: |\n    {PEM.format('OPENSSH ')}\n    b3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n",
    "PEM in one line of a shell script": f'export KEY="{PEM.format("EC ")}\\n{BODY}"',
    "PEM with spaces for line ends": f"KEY={PEM.format('')} {BODY}",
    "PGP": "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n\nlQOYBF",
    "SSH.com": "---- BEGIN SSH2 ENCRYPTED " + "PRIVATE KEY ----\nComment: x",
    "kubeconfig data": "client-key-data: " + base64.b64encode(f"{PEM.format('RSA ')}\n{BODY}".encode()).decode(),
    "PuTTY": "PuTTY-User-" + "Key-File-3: ssh-ed25519\nEncryption: none\n",
    "age": "AGE-SECRET-" + "KEY-1QQPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQGPQYQSZQ",
    "WireGuard": "[Interface]\nPrivate" + "Key = " + base64.b64encode(bytes(range(32))).decode() + "\n",
    "JSON Web Key": json.dumps({"kty": "EC", "crv": "P-256", "d": "A" * 43}),
    "AWS secret alone": "aws_secret_" + "access_key = " + "a1B2" * 10 + "\n",
    "npm": "//registry.example/:_auth" + "Token=abcdefgh12345678",
    "own key": f"what: {OWN}",
    "own key in base64": base64.b64encode(f"user:{OWN}".encode()).decode(),
    "own key in hex": OWN.encode().hex(),
    "own key in UTF-16": OWN.encode("utf-16").decode("latin-1"),
}
HARMLESS = {
    "a header in source code": f'if line == "{PEM.format("RSA ")}":\n    raise ValueError\n',
    "a certificate": "-----BEGIN CERTIFICATE-----\n" + BODY,
    "a public key": "-----BEGIN PUBLIC KEY-----\n" + BODY,
    "a certificate in base64": base64.b64encode(b"-----BEGIN CERTIFICATE-----\n" + BODY.encode()).decode(),
    "documentation of AWS": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "a word with a prefix of a token": "task-abcdefghijklmnopqrstuvwxyz risk-0123456789012345678901234",
    "a WireGuard peer": "PublicKey = " + base64.b64encode(bytes(32)).decode(),
    "an npm token of the environment": "//registry.example/:_authToken=${NPM_TOKEN}",
}


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name in (one for one in os.environ if "KEY" in one or "TOKEN" in one):
        monkeypatch.delenv(name)
    monkeypatch.setenv("LIUM_API_KEY", OWN)
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "main.py").write_text("print(1)\n")
    return root


def refused(root: Path, *anyway: str) -> dict[str, str]:
    return {one.path: one.reason for one in shipment.pack(root, anyway).refused}


@pytest.mark.parametrize("what", SECRETS)
@pytest.mark.parametrize("depth", [0, PIECE_BYTES - 20])
def test_a_file_with_a_secret_anywhere_is_not_sent(root, what, depth):
    filler = b"0123456789abcde\n" * (depth // 16 + 1)
    (root / "data.txt").write_bytes(filler[:depth] + b"\n" * bool(depth) + SECRETS[what].encode("latin-1") + b"\n")
    assert list(refused(root)) == ["data.txt"]


@pytest.mark.parametrize("what", HARMLESS)
def test_text_similar_to_a_secret_is_sent(root, what):
    (root / "data.txt").write_text(HARMLESS[what] + "\n")
    assert refused(root) == {}


USUAL = (".envrc prod.env .env.local kubeconfig lab.kubeconfig .netrc .pgpass credentials credentials.json id_ed25519 "
         "putty.ppk store.p12 secrets.yaml .bash_history sub/.envrc").split()  # fmt: skip
SOURCES = (".env.example credentials.py env.py environment.yml kubeconfig.go id_rsa.pub secrets.py credentials.ts "
           "env.sh .npmrc .pypirc").split()  # fmt: skip


@pytest.mark.parametrize("name", USUAL)
def test_a_file_with_a_common_secret_name_is_not_sent(root, name):
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("a=1\n")
    assert refused(root) == {name: inspector.BY_NAME}


@pytest.mark.parametrize("name", SOURCES)
def test_source_and_examples_are_sent_under_any_name(root, name):
    (root / name).write_text("path=$HOME/bin\n")
    assert refused(root) == {}


LINES = {".npmrc": "_auth=aGVsbG86", ".pypirc": "password: hunter22", "env.sh": "export DB_PASSWORD='hunter22'",
         "pip.conf": "index-url = https://me:hunter22@pypi.example/simple"}  # fmt: skip


@pytest.mark.parametrize("name, line", LINES.items())
def test_a_settings_file_with_a_password_is_not_sent(root, name, line):
    (root / name).write_text(f"# mine\n{line}\n")
    assert refused(root) == {name: "holds a password or a token"}


def test_the_reason_names_the_variable_and_never_the_value(root):
    (root / "notes.md").write_text(OWN)
    assert refused(root) == {"notes.md": "holds the value of LIUM_API_KEY"}


def test_keys_of_the_dotenv_file_are_recognized_except_short_values(tmp_path):
    lines = ["DB_PASSWORD=correct-horse-battery", "RUNPOD_API_KEY=k", "SLIPWAY_PROFILE=a-long-profile"]
    lines.append("SLIPWAY_HOOK_TEAM=slack https://hooks.example/T0/abcdef")
    (tmp_path / ".env").write_text("\n".join(lines))
    (tmp_path / ".env").chmod(0o600)
    found = {one.name: one.value for one in contents.keys_of_installation(tmp_path, {})}
    assert found == {
        "DB_PASSWORD": "correct-horse-battery",
        "RUNPOD_API_KEY": "k",
        "SLIPWAY_HOOK_TEAM": "https://hooks.example/T0/abcdef",
    }
    assert {name for name, _ in needles(contents.keys_of_installation(tmp_path, {})).plain} == {
        "DB_PASSWORD",
        "SLIPWAY_HOOK_TEAM",
    }
    assert "correct" not in repr(contents.keys_of_installation(tmp_path, {}))


def test_the_private_key_of_a_service_account_is_recognized_by_a_line(tmp_path):
    (tmp_path / "account.json").write_text(ACCOUNT)
    keys = contents.keys_of_installation(tmp_path, {"GOOGLE_CREDENTIALS": str(tmp_path / "account.json")})
    assert [value for _, value in needles(keys).plain] == [BODY.encode()]


@pytest.mark.process
def test_a_refused_file_is_sent_only_if_named_and_tracked_by_git(root):
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / "prod.env").write_text("A=1\n")
    (root / "other.env").write_text("A=1\n")
    assert set(refused(root)) == {"prod.env", "other.env"}
    assert "git does not track" in refused(root, "prod.env")["prod.env"]
    subprocess.run(["git", "-C", root, "add", "prod.env", "other.env"], check=True)
    assert set(refused(root)) == {"prod.env", "other.env"}
    assert set(refused(root, "prod.env")) == {"other.env"}
    assert set(refused(root, str(root / "other.env"), "./prod.env")) == set()


def test_a_named_file_is_sent_without_git(root, tmp_path):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "credentials").write_text("a")
    assert shipment.measure(tmp_path / "plain", "credentials").files == 0
    assert shipment.measure(tmp_path / "plain", "credentials", ["credentials"]).files == 1


def test_a_folder_that_contains_the_home_is_no_project(tmp_path, monkeypatch):
    (tmp_path / "people" / "me").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "people" / "me"))
    (tmp_path / "people" / "a").write_text("a")
    with pytest.raises(UsageError, match="home folder"):
        shipment.survey(tmp_path / "people")


def test_an_answer_is_remembered_until_the_file_or_the_keys_change(root, monkeypatch):
    (root / "big").write_text("x" * 100)
    os.utime(root / "big", ns=(1, 1))
    fed = []
    feed = ContentScanner.feed
    monkeypatch.setattr(
        ContentScanner, "feed", lambda self, piece, is_last=False: fed.append(piece) or feed(self, piece, is_last)
    )
    monkeypatch.setattr("infra.transport.scan.inspector.FRESH_NS", -(10**18))
    refused(root)
    first = len(fed)
    refused(root)
    assert len(fed) == first
    monkeypatch.setenv("LIUM_API_KEY", "x" * 50)
    assert refused(root) == {"big": "holds the value of LIUM_API_KEY"}


@pytest.mark.slow
@settings(max_examples=60)
@given(st.sampled_from(sorted(SECRETS)), st.integers(0, 3 * OVERLAP_BYTES), st.lists(st.integers(1, 5000), min_size=1))
def test_a_secret_is_found_for_any_split_of_the_file(what, before, cuts):
    text = b"\n" * before + SECRETS[what].encode("latin-1") + b"\n" * 50
    scanner = ContentScanner(needles([OwnKey("LIUM_API_KEY", OWN)]))
    begin = 0
    while begin < len(text):
        size = cuts[begin % len(cuts)]
        scanner.feed(text[begin : begin + size])
        begin += size
    scanner.feed(b"", is_last=True)
    assert scanner.reason


def test_a_token_split_between_pieces_is_judged_as_a_whole():
    word = b"x AKIA" + b"A1B2C3D4E5F6G7H8"
    for more, is_found in ((b"IJ", False), (b" .", True)):
        scanner = ContentScanner(needles([]))
        scanner.feed(word)
        scanner.feed(more)
        scanner.feed(b"", is_last=True)
        assert bool(scanner.reason) == is_found


def test_memory_is_bounded():
    scanner = ContentScanner(needles([OwnKey("A", "b" * 5000)]))
    for _ in range(3):
        scanner.feed(b"x" * PIECE_BYTES)
    assert len(scanner.tail) == OVERLAP_BYTES
    assert max(len(value) for _, value in scanner.own.plain) <= contents.MOST_VALUE_BYTES
