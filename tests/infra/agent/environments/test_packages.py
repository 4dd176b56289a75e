"""The sources of packages: the configuration as pip reads it, and the part that other machines can use."""

import os
import socket
import subprocess
import sys

import pytest

from infra.agent.environments import packages

BASE = getattr(sys, "_base_executable", sys.executable)


def test_uv_gets_the_whole_configuration_of_pip(tmp_path):
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://one.invalid/simple\ncert = /global.pem\ntimeout = 7.5\n"
        f"extra-index-url =\n    https://two.invalid/simple\n    file:///three\nfind-links = /absent {tmp_path}\n"
        "[install]\ncert = /install.pem\ntrusted-host = a.invalid b.invalid\n"
    )
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_CONFIG_FILE": str(tmp_path / "pip.conf")}
    environ |= {"PIP_INDEX_URL": "https://env.invalid/simple", "UV_HTTP_TIMEOUT": "9", "PYTHONPATH": "/gone"}
    told = packages.uv_environ(packages.pip_settings(environ), environ)
    assert {name: value for name, value in told.items() if name.startswith(("UV_", "SSL_", "PYTHON"))} == {
        "UV_DEFAULT_INDEX": "https://env.invalid/simple",
        "UV_INDEX": "https://two.invalid/simple file:///three",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": str(tmp_path),
        "UV_INSECURE_HOST": "a.invalid b.invalid",
        "UV_HTTP_TIMEOUT": "9",
        "SSL_CERT_FILE": "/install.pem",
    }
    told = packages.uv_environ({"no-index": "true", "index-url": "https://one.invalid/simple"}, environ)
    assert "UV_DEFAULT_INDEX" not in told and "UV_INDEX" not in told


@pytest.mark.nightly
@pytest.mark.process
def test_configuration_files_are_read_in_pips_order(tmp_path):
    for number, place in enumerate(("xdg/pip", ".pip", ".config/pip", "named")):
        (tmp_path / place).mkdir(parents=True)
        text = (
            f"[global]\nindex-url = https://{number}.invalid\nfind-links =\n  /a{number}\n  /b\n[list]\nformat = json\n"
        )
        (tmp_path / place / "pip.conf").write_text(text)
    (tmp_path / "xdg/pip/pip.conf").write_text("[global]\nindex_url = https://0.invalid\nretries = 7\n")
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CONFIG_DIRS": str(tmp_path / "xdg")}
    pip = tmp_path / "venv" / "bin" / "python"
    subprocess.run([BASE, "-m", "venv", tmp_path / "venv"], check=True)
    for more in ({}, {"PIP_CONFIG_FILE": str(tmp_path / "named/pip.conf")}, {"PIP_CONFIG_FILE": os.devnull}):
        for setting in ({}, {"PIP_INDEX_URL": "https://env.invalid"}):
            environ_now = {**environ, **more, **setting}
            words = [pip, "-m", "pip", "config", "list"]
            said = subprocess.run(words, env=environ_now, capture_output=True, text=True, check=True).stdout
            read = packages.pip_settings(environ_now)
            for option, value in read.items():
                spelt = {f"global.{option}={value!r}", f":env:.{option}={value!r}"}
                assert spelt & set(said.splitlines()) or option == "config-file", (option, said)
            assert ("retries" in read) == ("retries" in said)


def test_package_sources_are_sent_without_passwords(tmp_path):
    environ = {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "https://me:secret@one.invalid:8443/simple",
        "PIP_FIND_LINKS": f"{tmp_path} https://links.invalid/torch.html",
        "UV_INDEX": "two=https://me:p@ss@two.invalid/simple file:///three",
    }
    assert packages.portable_sources(environ) == {
        "index-url": ["https://one.invalid:8443/simple"],
        "extra-index-url": ["https://two.invalid/simple", "file:///three"],
        "find-links": [str(tmp_path), "https://links.invalid/torch.html"],
    }


@pytest.mark.process
def test_a_sent_package_source_is_used_where_it_exists(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with socket.create_server(("127.0.0.1", 0)) as answering, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # a taken port without a listener
        good, bad = (f"http://127.0.0.1:{one.getsockname()[1]}/simple" for one in (answering, silent))
        places = {"index-url": [bad], "extra-index-url": [good, f"file://{tmp_path}", "file:///absent"]}
        carried = packages.CarriedSources(settings={**places, "find-links": [str(tmp_path), "/absent"]})
        here = packages.settings_here(carried, offline=False)
        offline = packages.settings_here(carried, offline=True)
        monkeypatch.setenv("PIP_FIND_LINKS", "/mine")
        mine = packages.settings_here(carried, offline=False)
    here.pop("config-file")
    assert here == {"extra-index-url": f"{good} file://{tmp_path}", "find-links": str(tmp_path)}
    assert offline["index-url"] == bad and "absent" not in str(offline)
    assert mine["find-links"] == "/mine"
    assert packages.pip_environ(here)["PIP_EXTRA_INDEX_URL"] == f"{good} file://{tmp_path}"
