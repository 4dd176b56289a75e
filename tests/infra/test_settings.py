"""Settings: each layer overrides the next, and every value has a source."""

import os
import re
import subprocess
import warnings
from pathlib import Path

import pytest

from infra import settings
from infra.errors import UsageError
from infra.settings import Settings, is_secret
from store import packs
from store.backends import s3

REPOSITORY = Path(__file__).parents[2]


def test_each_layer_overrides_the_layers_below(tmp_path):
    (tmp_path / "slipway.yaml").write_text("profile: from-yaml\n")
    seen = [Settings.load(tmp_path, environ={})]
    (tmp_path / ".env").write_text("SLIPWAY_PROFILE=from-dotenv\n")
    seen.append(Settings.load(tmp_path, environ={}))
    environ = {"SLIPWAY_PROFILE": "from-shell"}
    seen.append(Settings.load(tmp_path, environ=environ))
    overrides = ["SLIPWAY_PROFILE=from-override"]
    seen.append(Settings.load(tmp_path, overrides=overrides, environ=environ))
    seen.append(Settings.load(tmp_path, {"profile": "from-flag"}, overrides, environ))
    assert [(one.profile, one.sources["profile"]) for one in seen] == [
        ("from-yaml", "slipway.yaml"),
        ("from-dotenv", ".env"),
        ("from-shell", "shell"),
        ("from-override", "-e"),
        ("from-flag", "--profile"),
    ]


def test_defaults_apply_without_other_layers(tmp_path):
    read = Settings.load(tmp_path, environ={"XDG_STATE_HOME": "/state", "XDG_CACHE_HOME": "/cache"})
    assert (read.provider, read.sources["provider"]) == ("local", "default: no vendor key is set")
    assert (read.store, read.pods) == (str(tmp_path / "var/artifacts"), tmp_path / "var/pods")
    assert read.state_file == Path("/state/slipway/journal.sqlite")
    assert read.environments == Path("/cache/slipway/environments")
    assert read.reserve_bytes == 1 << 30


def test_a_vendor_key_decides_the_default_provider(tmp_path):
    read = Settings.load(tmp_path, environ={"LIUM_API_KEY": "k"})
    assert (read.provider, read.sources["provider"]) == ("market", "default: LIUM_API_KEY is set")
    assert Settings.load(tmp_path, {"provider": "local"}, environ={"LIUM_API_KEY": "k"}).provider == "local"


def test_an_empty_variable_counts_as_not_set(tmp_path):
    assert Settings.load(tmp_path, environ={"SLIPWAY_PROFILE": ""}).sources["profile"] == "default"


def test_a_relative_path_starts_at_the_folder_of_its_file(tmp_path):
    (tmp_path / ".env").write_text("SLIPWAY_PODS=here\n")
    assert Settings.load(tmp_path, environ={}).pods == tmp_path / "here"
    assert Settings.load(tmp_path, {"pods": "here"}, environ={}).pods == Path.cwd() / "here"
    assert Settings.load(tmp_path, {"source": "a/*.txt"}, environ={}).source == str(Path.cwd() / "a/*.txt")
    assert Settings.load(tmp_path, {"source": "fineweb"}, environ={}).source == "fineweb"
    mixture = Settings.load(tmp_path, {"source": "a.txt=0.5,hf://x/y=.2,pydocs=1"}, environ={}).source
    assert mixture == f"{Path.cwd() / 'a.txt'}=0.5,hf://x/y=.2,pydocs=1"
    assert Settings.load(tmp_path, {"store": "s3://bucket/x"}, environ={}).store == "s3://bucket/x"


def test_secrets_are_never_shown(tmp_path):
    read = Settings.load(tmp_path, environ={"HF_TOKEN": "hf_canary"})
    shown = {one.name: one for one in read.list_settings()}
    assert (shown["hf_token"].value, shown["hf_token"].source) == ("set", "shell")
    assert (shown["lium_api_key"].value, shown["lium_api_key"].source) == ("not set", "")
    assert "canary" not in str(read.list_settings())
    assert "canary" not in repr(read)


def test_keys_are_read_from_the_credentials_folder_and_overridden_by_env(tmp_path):
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / ".env").write_text("HF_TOKEN=hf_there\nAWS_SESSION_TOKEN=there\n")
    (tmp_path / ".env").write_text("HF_TOKEN=hf_here\n")
    for path in (tmp_path / "credentials" / ".env", tmp_path / ".env"):
        path.chmod(0o600)
    read = Settings.load(tmp_path, environ={})
    assert (read.hf_token, read.aws_session_token, read.sources["aws_session_token"]) == ("hf_here", "there", ".env")


def test_a_number_of_tokens_is_not_a_secret():
    assert not is_secret("TOKENS")  # of SkyPilot's recipes, and a setting of ours
    assert all(is_secret(name) for name in ("HF_TOKEN", "API_TOKENS", "tokens_key"))


def test_dotenv_keeps_single_quoted_text_and_reports_an_unknown_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("KNOWN", "seen")
    lines = ("A='${KNOWN} #1'", 'B="${KNOWN}/x"', "C=${KNOWN}${B}", "D=${OTHER:-usual}", "export E=a${MISSING}b # why")
    (tmp_path / ".env").write_text("\ufeff" + "\n".join((*lines, "F='it is $9'")))
    with pytest.warns(settings.SettingsWarning, match=r"line 5: \$\{MISSING\} is not set, and counts as empty"):
        read = settings.read_dotenv(tmp_path / ".env")
    wanted = {"A": "${KNOWN} #1", "B": "seen/x", "C": "seenseen/x", "D": "usual", "E": "ab", "F": "it is $9"}
    assert read == wanted


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("A=k\nA=", {}),
        ("A=k\nexport A=''  # off", {}),
        ("A=\nA=k", {"A": "k"}),
        ("A=k\nA=${NOT_SET:-}", {}),
        ("A=k\nA=\nB=${A}l", {"B": "l"}),
    ],
)
def test_the_last_line_of_a_variable_counts_and_an_empty_one_switches_the_variable_off(tmp_path, lines, expected):
    """Machines would be rented from a vendor that the user has switched off."""
    (tmp_path / ".env").write_text(lines)
    assert settings.read_dotenv(tmp_path / ".env") == expected


FORMS = ("$(cat key)", "${KNOWN:?missing}", "${OTHER:-${KNOWN}}", '"a${KNOWN:+b}"', "export:$(x)")


@pytest.mark.parametrize("form", FORMS)
def test_dotenv_reports_the_forms_of_a_shell_that_stay_text(tmp_path, monkeypatch, form):
    monkeypatch.setenv("KNOWN", "seen")
    text = form.removeprefix("export:")
    (tmp_path / ".env").write_text(f"{'export ' if form is FORMS[-1] else ''}A={text}\nB='{text}'\n")
    why = r"line 1: \$\(...\), and \$\{...\} other .* stay text"
    with pytest.warns(settings.SettingsWarning, match=why) as told:
        read = settings.read_dotenv(tmp_path / ".env")
    assert len(told) == 1 and "$" in read["A"] and read["B"] == text


def test_dotenv_expands_the_lines_of_a_shell(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("PLACE", "/data")
    lines = ("export PATH=$PATH:/x", "export BOOKS=$PLACE/books", "LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/y", "COST=a$PLACE")
    (tmp_path / ".env").write_text("\n".join((*lines, "export KEPT='$PLACE'", 'export B="$BOOKS/b"')))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    wanted = {"PATH": "/usr/bin:/x", "BOOKS": "/data/books", "LD_LIBRARY_PATH": "/lib:/y", "COST": "a$PLACE"}
    with pytest.warns(settings.SettingsWarning, match=r"line 4: \$NAME stays text in a line without `export`") as told:
        read = settings.read_dotenv(tmp_path / ".env")
    assert len(told) == 1 and read == {**wanted, "KEPT": "$PLACE", "B": "/data/books/b"}


# Values with the same meaning in bash.
SHELL = r"""
'a\\b' 'a\nb' 'pa\$word' 'C:\dir' 'a"b' '$SET' '${SET}' '$(id)' 'a#b' "pa\$word" "pa\$SET" "pa\${SET}" "a\\b" "a\"b"
"\\\$SET" "a\\\$b" "${SET}/\$SET" pa\$word "it's" "a#b"
""".split()


@pytest.mark.process
@pytest.mark.parametrize("export", ["", "export "])
@pytest.mark.parametrize("value", SHELL)
def test_dotenv_reads_quotes_and_escapes_as_a_shell(tmp_path, monkeypatch, recwarn, export, value):
    monkeypatch.setenv("SET", "seen")
    (tmp_path / ".env").write_text(f"{export}A={value}\n")
    line = f'{export}A={value}; printf %s "$A"'
    theirs = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert settings.read_dotenv(tmp_path / ".env") == {"A": theirs} and not recwarn.list


@pytest.mark.parametrize(
    ("line", "value", "is_told"),
    [
        ('A="$SET/x"', "$SET/x", True),
        ("A=$SET/x", "$SET/x", True),
        ("A=${OTHER:-$SET}", "$SET", True),
        ("A=pa$word9", "pa$word9", False),
        ("A='$SET/x'", "$SET/x", False),
        (r'A="\$SET/x"', "$SET/x", False),
        ('A="${SET}/x"', "seen/x", False),
        ('export A="$SET/x"', "seen/x", False),
    ],
)
def test_dotenv_reports_a_set_variable_that_stays_text_without_a_value(
    tmp_path, monkeypatch, recwarn, line, value, is_told
):
    """The journal of rented machines would be in a folder `$HOME` of the checkout."""
    monkeypatch.setenv("SET", "seen")
    (tmp_path / ".env").write_text(f"\n{line}\n")
    assert settings.read_dotenv(tmp_path / ".env") == {"A": value}
    said = [str(one.message) for one in recwarn]
    assert len(said) == is_told and all("line 2: $NAME stays text" in one and "seen" not in one for one in said)


@pytest.mark.process  # botocore looks up this machine
def test_addresses_of_stores_work_from_dotenv(tmp_path, monkeypatch):
    for name in (*settings.ENVIRONMENT, "SLIPWAY_INSTALLER"):
        monkeypatch.setenv(name, "any")
        monkeypatch.delenv(name)
    lines = [f"{name}=http://127.0.0.1:9/{name.lower()}" for name in settings.ENVIRONMENT]
    (tmp_path / ".env").write_text("\n".join(lines).replace("http://127.0.0.1:9/aws_region", "auto"))
    monkeypatch.setenv("HF_ENDPOINT", "http://from.the.shell")
    loaded = Settings.load(tmp_path, environ=dict(os.environ))
    loaded.lend_environment()
    assert "SLIPWAY_ENDPOINT_KEY" not in os.environ  # a job on this machine would inherit the key
    loaded.lend_environment(secrets=True)
    assert os.environ["SLIPWAY_ENDPOINT_KEY"]
    assert os.environ["HF_ENDPOINT"] == "http://from.the.shell" and os.environ["AWS_REGION"] == "auto"
    assert os.environ["STORAGE_EMULATOR_HOST"].endswith("/storage_emulator_host")
    client = s3.Bucket("s3://bucket/x")._client
    assert (client.meta.endpoint_url, client.meta.region_name) == ("http://127.0.0.1:9/aws_endpoint_url_s3", "auto")


def test_an_override_without_value_takes_the_shells_value(tmp_path):
    environ = {"SLIPWAY_PROFILE": "exported"}
    assert Settings.load(tmp_path, overrides=["SLIPWAY_PROFILE"], environ=environ).sources["profile"] == "-e"


@pytest.mark.parametrize(
    ("overrides", "dotenv", "yaml", "said"),
    [
        (["SLIPWAY_PROFIL=x"], "", "", "-e: unknown setting SLIPWAY_PROFIL; did you mean SLIPWAY_PROFILE?"),
        (["SLIPWAY_PROFILE"], "", "", "-e SLIPWAY_PROFILE: SLIPWAY_PROFILE is not set in the shell"),
        (["a b=c"], "", "", "expected KEY=VALUE"),
        ([], "SLIPWAY_STOR=x", "", ".env: unknown setting SLIPWAY_STOR; did you mean SLIPWAY_STORE?"),
        ([], "SLIPWAY_RESERVE_BYTES=many", "", ".env: SLIPWAY_RESERVE_BYTES is 'many', which is not a whole number"),
        ([], "", "profil: x", "slipway.yaml: unknown setting 'profil'; did you mean profile?"),
        ([], "", "hf_token: x", "keys belong into .env"),
        ([], "", "profile: [a]", "slipway.yaml: profile: expected one word or number"),
        ([], "", "- a", "slipway.yaml: expected lines of the form `name: value`"),
        ([], "", "a: b: c", "slipway.yaml line 1 column 5: mapping values"),
    ],
)
def test_an_invalid_value_is_refused_with_its_position(tmp_path, overrides, dotenv, yaml, said):
    (tmp_path / ".env").write_text(dotenv)
    (tmp_path / "slipway.yaml").write_text(yaml)
    with pytest.raises(UsageError) as refused:
        Settings.load(tmp_path, overrides=overrides, environ={})
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("where", ["shell", "-e", ".env"])
def test_a_variable_of_a_missing_pack_is_refused_with_its_name(tmp_path, monkeypatch, where):
    """The variable may decide where commands run."""
    monkeypatch.setattr(packs, "installed", lambda: {})
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    if where == ".env":
        (tmp_path / ".env").write_text("SLIPWAY_CONTROL=box\n")
    given = ["SLIPWAY_CONTROL=box"] if where == "-e" else []
    environ = {"SLIPWAY_CONTROL": "box"} if where == "shell" else {}
    with pytest.raises(
        UsageError, match=f"^{re.escape(where)}: SLIPWAY_CONTROL: control belongs to the pack control_host"
    ):
        Settings.load(tmp_path, overrides=given, environ=environ)


@pytest.mark.parametrize("name", [".env", "slipway.yaml"])
def test_a_binary_file_is_refused_with_its_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=f"^{name}: .*codec"):
        Settings.load(tmp_path, environ={})


def test_the_example_file_lists_every_variable_with_one_comment_each():
    assert (REPOSITORY / ".env.example").read_text(encoding="utf-8") == settings.example()


def test_the_example_file_names_every_variable_read_by_our_programs():
    read = set()
    for folder in ("infra", "data", "trainer", "flows", "scripts", "store"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            read |= set(
                re.findall(r"environ(?:\.get\(|\[)[\"'](SLIPWAY_\w+|HF_\w+|SHARD_\w+)", path.read_text("utf-8"))
            )
    given_to_a_step = {
        f"SLIPWAY_{name}"
        for name in ("RECORDS", "WORK", "RUN_ID", "NODE_RANK", "NUM_NODES", "PARENT", "VOLUME", "CLOUD")
    }
    of_a_pod = given_to_a_step | settings.SHELL_ONLY.keys()
    assert {name for name in read - of_a_pod if name not in settings.example()} == set()
    assert not [name for name in settings.SHELL_ONLY if name in settings.example()]  # a line there would have no effect


def test_an_invalid_line_is_skipped_and_reported_once_with_its_file(tmp_path, recwarn):
    text = (
        "\n# c\n\nthis is broken\nHF_TOKEN=abc\nexport A\nexport SLIPWAY_PROFILE=tiny\n\nB=a\0b\nLIUM_API_KEY: x\n"
        "$env:A='1'\nY='open\n"
    )
    (tmp_path / ".env").write_text(text)
    (tmp_path / ".env").chmod(0o600)
    for _ in range(3):
        read = Settings.load(tmp_path, environ={})
    assert (read.profile, read.hf_token, read.lium_api_key) == ("tiny", "abc", "")
    said = [f"{tmp_path}/.env: line {line} is left out: expected NAME=value" for line in (4, 6, 9, 10, 11, 12)]
    assert [str(one.message) for one in recwarn] == said


@pytest.mark.parametrize(("mode", "text", "is_told"), [
    (0o644, "HF_TOKEN=abc", True), (0o640, "OTHERS_SECRET=x", True), (0o600, "HF_TOKEN=abc", False),
    (0o644, "SLIPWAY_PROFILE=tiny", False), (0o644, "HF_TOKEN=", False),
])  # fmt: skip
def test_keys_readable_by_others_are_reported_once_with_a_command(tmp_path, recwarn, mode, text, is_told):
    (tmp_path / ".env").write_text(text)
    (tmp_path / ".env").chmod(mode)
    for _ in range(2):
        Settings.load(tmp_path, environ={})
    name = text.partition("=")[0]
    said = f"{tmp_path}/.env holds {name}, and other users can read the file; run: chmod 600 {tmp_path}/.env"
    assert [str(one.message) for one in recwarn] == [said] * is_told


def test_a_too_short_vendor_key_is_reported_except_in_a_rehearsal(tmp_path):
    def warned(**keys):
        settings._warned.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            Settings.load(tmp_path, environ=keys)
        return [str(one.message) for one in said]

    (one,) = warned(RUNPOD_API_KEY="k" * 15, LIUM_API_KEY="l" * 16)
    assert one == (
        "RUNPOD_API_KEY is unlikely to be a key of runpod: the value has 15 letters, and keys have at least 16; "
        "enter the key again: inv init runpod"
    )
    assert "the value has 1 letter," in warned(SHADEFORM_API_KEY="k")[0]
    assert warned() == []
