"""The sources of packages: pip's configuration of this machine, and what was carried here from another one.

In: pip's files and variables; `packages.json`, which whoever hands over a job writes beside it. Out: the environment
under which uv, or pip, looks in the same places. This machine's own configuration overrides what was carried; a carried
folder counts where it exists here, a carried index where it answers. Standard library only, and a grammar that Python
3.9 reads.
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

ANSWER_S = 3.0  # time for a carried index to accept a connection
CARRIED = {  # options of pip that are carried, with uv's names for them, the newer one first
    "index-url": ("UV_DEFAULT_INDEX", "UV_INDEX_URL"),
    "extra-index-url": ("UV_INDEX", "UV_EXTRA_INDEX_URL"),
    "find-links": ("UV_FIND_LINKS",),
}


@dataclass(frozen=True)
class CarriedSources:
    """The package sources that came along with a job; empty on the machine in front of the user."""

    uv: str = ""  # a copy of uv; "" or no file there: none came
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # places by pip's option


NOTHING = CarriedSources()


def to_carry(environ: Mapping[str, str] = os.environ) -> Dict[str, List[str]]:
    """Return the places that uv looks in here, for another machine; passwords stay here."""
    told = uv_environ(pip_settings(environ), environ)
    places = {}
    for option, names in CARRIED.items():
        text = next((told[name] for name in names if told.get(name)), "")
        places[option] = [_bare(one) for one in re.split(r"[,\s]+", text) if one]
    return {option: found for option, found in places.items() if found}


def settings_here(carried: CarriedSources, offline: bool) -> Dict[str, str]:
    """Return pip's settings of this machine, and of the carried ones what it does not set and can use.

    Offline nobody is asked, so that every index counts: uv knows what it has cached by the index it came from.
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
    """Return a place without the name that uv lets an index have, and without the password."""
    return re.sub(r"(?<=//)[^/]*@", "", re.sub(r"^[\w-]+=", "", place))


def pip_settings(environ: Mapping[str, str] = os.environ) -> Dict[str, str]:
    """Return pip's configuration, by option name: its files, then PIP_*. pip need not be there, nor be started.

    Source: pip.pypa.io/en/stable/topics/configuration, 26.0.
    """
    read: Dict[Tuple[str, str], str] = {}
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        parser.read(path, encoding="utf-8")  # a folder that does not exist is left out
        for section in parser.sections():
            read.update({(section, name.replace("_", "-")): value for name, value in parser.items(section)})
    settings: Dict[str, str] = {}
    for wanted in ("global", "install"):  # settings of `pip install` override those of all of pip
        settings.update({name: value for (section, name), value in read.items() if section == wanted})
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            settings[name[4:].lower().replace("_", "-")] = value
    return settings


def _pip_files(environ: Mapping[str, str]) -> List[Path]:
    """Return pip's files; later ones override earlier ones."""
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
    """Return the environment under which uv looks where pip would. What is set for uv itself (UV_*) stands."""

    def several(option: str) -> List[str]:
        return settings.get(option, "").split()

    no_index = forbids_index(settings)
    links = [link for link in several("find-links") if "://" in link or os.path.exists(os.path.expanduser(link))]
    timeout_s = settings.get("timeout") or settings.get("default-timeout", "")
    said = {
        "UV_DEFAULT_INDEX": "" if no_index else settings.get("index-url", ""),
        "UV_INDEX": "" if no_index else " ".join(several("extra-index-url")),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # pip's own: the best version of all indexes
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
    """Return the environment under which pip installs into the environment that it lies in, and nowhere else.

    pip reads its own files; of `settings` it is told what may have been carried here.
    """
    told = {f"PIP_{name.upper().replace('-', '_')}": settings[name] for name in CARRIED if name in settings}
    plain = {**told, **_plain(environ)}
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"):
        plain.pop(name, None)
    return {"PIP_RETRIES": "2", **plain, "PIP_USER": "0", "PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _plain(environ: Mapping[str, str]) -> Dict[str, str]:
    return {name: value for name, value in environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
