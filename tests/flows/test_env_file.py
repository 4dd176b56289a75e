"""`.env` after a change by `inv init`: one variable is set, and every other byte stays."""

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from dotenv import dotenv_values

from flows.installation import env_file
from infra import dotenv_file
from infra.errors import UsageError

OWN = "# mine\nexport LIUM_API_KEY='old one'  # note\n\nOTHER = 3\nnot a line of ours\nHF_TOKEN=a\nHF_TOKEN=b"


def test_a_variable_is_set_in_place_and_all_other_bytes_stay():
    text = env_file.with_variables(OWN, {"LIUM_API_KEY": "li-2", "HF_TOKEN": "hf_3", "RUNPOD_API_KEY": "rp"})
    lines = [
        "# mine",
        "export LIUM_API_KEY=li-2",
        "",
        "OTHER = 3",
        "not a line of ours",
        "HF_TOKEN=hf_3",
        "RUNPOD_API_KEY=rp",
    ]
    assert text.splitlines() == lines


def test_a_new_line_follows_its_explanation():
    text = env_file.with_variables(
        "# RunPod: the key\n# RUNPOD_API_KEY=\n\n# Lium\n# LIUM_API_KEY=\n", {"RUNPOD_API_KEY": "k"}
    )
    assert text == "# RunPod: the key\n# RUNPOD_API_KEY=\nRUNPOD_API_KEY=k\n\n# Lium\n# LIUM_API_KEY=\n"


@pytest.mark.process
@pytest.mark.parametrize("before", ["", OWN, "\ufeffA=1\r\nB=2\r\n", "A=1"])
@pytest.mark.parametrize(
    "value",
    [
        "rpa_ABC123",
        "a'b",
        'a"b',
        "back\\slash",
        "a b#c",
        "#x",
        "$HOME",
        "a=b",
        "s3://b/f?x=1",
        r"a\\b",
        "a\\",
        r"a\'b",
        r"it's \$5",
        r"\n'",
        "'",
        "\\",
    ],
)
def test_a_key_with_any_content_is_read_back_unchanged(before, value):
    text = env_file.with_variables(before, {"RUNPOD_API_KEY": value})
    assert {one.name: one.value for one in dotenv_file.lines(text, os.environ)}["RUNPOD_API_KEY"] == value
    assert text.startswith(before)
    line = text.splitlines()[-1] + '; printf %s "$RUNPOD_API_KEY"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == value


@pytest.mark.parametrize("value", ["two\nlines", " lead", "größer", "${HOME}", "bell\a"])
def test_an_unrepresentable_value_is_refused_without_being_shown(value):
    with pytest.raises(UsageError) as seen:
        env_file.with_variables("", {"LIUM_API_KEY": value})
    assert value.strip() not in str(seen.value) and "LIUM_API_KEY" in str(seen.value)


def test_a_file_with_an_unreadable_line_is_left_unchanged(tmp_path):
    (tmp_path / ".env").write_text("A='open\n")
    with pytest.raises(UsageError, match="correct the syntax of the file"):
        env_file.set_variables(tmp_path, {"RUNPOD_API_KEY": "k'"})
    assert (tmp_path / ".env").read_text() == "A='open\n"


def test_the_file_is_private_and_a_link_stays_a_link(tmp_path):
    shared = tmp_path / "dotfiles" / "env"
    shared.parent.mkdir()
    shared.write_text("A=1\n")
    shared.chmod(0o644)
    (tmp_path / ".env").symlink_to(shared)
    assert env_file.set_variables(tmp_path, {"HF_TOKEN": "hf_1"})
    assert (tmp_path / ".env").is_symlink() and shared.read_text() == "A=1\nHF_TOKEN=hf_1\n"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o600
    shared.chmod(0o640)
    before = shared.stat().st_mtime_ns
    assert not env_file.set_variables(tmp_path, {"HF_TOKEN": "hf_1"})
    assert (stat.S_IMODE(shared.stat().st_mode), shared.stat().st_mtime_ns) == (0o600, before)


def test_concurrent_writers_keep_each_others_lines(tmp_path):
    names = [f"NAME_{n}" for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: env_file.set_variables(tmp_path, {name: name.lower()}), names))
    assert dotenv_values(tmp_path / ".env") == {name: name.lower() for name in names}
