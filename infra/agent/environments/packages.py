"""Package sources: the pip configuration of this machine, and the sources sent with a job.

The configuration of this machine overrides the sources of a job. A sent folder counts if the folder exists here, a sent
index if the index accepts connections. Standard library only, and syntax that Python 3.9 accepts.

    pip.conf files, PIP_* variables, packages.json (written by the hand-over) -> environment variables for uv or pip
"""

import configparser
import os
import re
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Sequence, Tuple
from urllib.parse import unquote, urlsplit

ANSWER_S = 3.0  # timeout for a connection to a sent index
CARRIED = {  # pip options sent with a job, and uv's variables for each option, newest first
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
}


@dataclass(frozen=True)
class CarriedSources:
    """The package sources sent with a job; empty on the user's own machine."""

    uv: str = ""  # path of a copy of uv; "" or a missing file means that no copy was sent
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # locations by pip option


NOTHING = CarriedSources()


def portable_sources(environ: Mapping[str, str] = os.environ) -> Dict[str, List[str]]:
    """Return the package locations of this machine for use on a pod, without credentials."""
    told = uv_environ(pip_settings(environ), environ)
    places = {}
    for option, names in CARRIED.items():
        text = next((told[name] for name in names if told.get(name)), "")
        places[option] = [_bare(one) for one in re.split(r"[,\s]+", text) if one]
    return {option: found for option, found in places.items() if found}


def settings_here(carried: CarriedSources, offline: bool) -> Dict[str, str]:
    """Return the pip settings of this machine, completed by the usable sent settings that this machine does not set.

    Offline, every sent index counts without a connection test: uv's cache is keyed by the index of a package.
    """
    brought = {}
    for option, places in carried.settings.items():
        brought[option] = " ".join(one for one in places if _is_here(one, offline))
    own = pip_settings()
    return {**{option: text for option, text in brought.items() if text}, **own}


def _is_here(place: str, offline: bool) -> bool:
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return os.path.exists(os.path.expanduser(unquote(parts.path)))
    if offline:
        return True
    try:
        port = parts.port or {"http": 80}.get(parts.scheme, 443)
        with socket.create_connection((parts.hostname or "", port), timeout=ANSWER_S):
            return True
    except (OSError, ValueError):
        return False


def _bare(place: str) -> str:
    """Return an index or location without uv's optional index name and without credentials."""
    return re.sub(r"(?<=//)[^/]*@", "", re.sub(r"^[\w-]+=", "", place))


def pip_settings(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Return pip's configuration by option name, from pip's files and then `PIP_*`, without running pip.

    Source: pip.pypa.io/en/stable/topics/configuration, 26.0.
    """
    read: Dict[Tuple[str, str], str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        parser.read(path, encoding="utf-8")  # skips missing files
        for section in parser.sections():
            read.update({(section, name.replace("_", "-")): value for name, value in parser.items(section)})
    settings: Dict[str, str] = {}
    for wanted in ("global", "install"):  # the `install` section overrides `global`
        settings.update({name: value for (section, name), value in read.items() if section == wanted})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _pip_files(environ: Mapping[str, str]) -> List[Path]:
    """Return pip's configuration files in ascending precedence; [] if `PIP_CONFIG_FILE` is the null device."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environ.get("HOME") or Path.home())
    machine = [Path(one) / "pip" for one in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if one]
    mine = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip"
    if sys.platform == "darwin":
        machine = [Path("/Library/Application Support/pip")]
        apple = home / "Library" / "Application Support" / "pip"
        mine = apple if apple.is_dir() else mine
    folders = [*machine, Path("/etc"), home / ".pip", mine, Path(sys.base_prefix), Path(sys.prefix)]
    return [*(folder / "pip.conf" for folder in folders), *([Path(named)] if named else [])]


def uv_environ(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Return an environment in which uv uses pip's package sources. Variables for uv itself (UV_*) take precedence."""

    def several(option: str) -> List[str]:
        return settings.get(option, "").split()

    no_index = forbids_index(settings)
    links = [link for link in several("find-links") if "://" in link or os.path.exists(os.path.expanduser(link))]
    timeout_s = settings.get("timeout") or settings.get("default-timeout", "")
    said = {
        "UV_DEFAULT_INDEX": "" if no_index else settings.get("index-url", ""),
        "UV_INDEX": "" if no_index else " ".join(several("extra-index-url")),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # like pip: the best version of all indexes
        "UV_FIND_LINKS": ",".join(os.path.expanduser(link) for link in links),
        "UV_INSECURE_HOST": " ".join(several("trusted-host")),
        "UV_HTTP_TIMEOUT": timeout_s.partition(".")[0],
        "SSL_CERT_FILE": settings.get("cert", ""),
        "SSL_CLIENT_CERT": settings.get("client-cert", ""),
        "ALL_PROXY": settings.get("proxy", ""),
    }
    return {**{name: value for name, value in said.items() if value}, **_plain(environ)}


def forbids_index(settings: Mapping[str, str]) -> bool:
    return settings.get("no-index", "").lower() in ("1", "true", "yes", "on")


def pip_environ(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Return an environment in which pip installs only into pip's own virtual environment.

    pip reads the configuration files itself; only the options that a job may carry are passed from `settings`.
    """
    told = {f"PIP_{name.upper().replace('-', '_')}": settings[name] for name in CARRIED if name in settings}
    plain = {**told, **_plain(environ)}
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"):
        plain.pop(name, None)
    return {"PIP_RETRIES": "2", **plain, "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _plain(environ: Mapping[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
