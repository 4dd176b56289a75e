"""Parse data set references, used for text, conversations and problems.

    hf://user/name[@revision][/config][:split][?column=its name&...]
    folder or files[:split][?column=its name&...]
    one=0.7,another=0.3                                     several, by weight

The split syntax is that of `datasets`: `train`, `train[:10%]`, `train[5:10]+test`. A string becomes a `SetReference`,
or several with weights. Parsing accesses no network and imports no heavy package, because plans use references too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from data.errors import ConfigError

HUB = "hf://"
NAME = r"[\w.-]+"
CONFIG = r"[^/:?@*<>|\\]+"  # `datasets` requires a folder name
PART = rf"{NAME}(?:\[-?\d*%?:-?\d*%?\](?:\((?:closest|pct1_dropremainder)\))?)?"
SPLIT = rf"{PART}(?:\+{PART})*"
ON_THE_HUB = re.compile(
    rf"hf://(?P<place>{NAME}/{NAME})(?:@(?P<revision>{NAME}))?(?:/(?P<config>{CONFIG}))?(?::(?P<split>{SPLIT}))?"
)
HERE = re.compile(rf"(?P<place>.+?)(?::(?P<split>{SPLIT}))?")
COLUMNS = re.compile(r"\?(?P<columns>\w+=[^&?=]+(?:&\w+=[^&?=]+)*)$")
WEIGHTED = re.compile(r"(?P<words>.+)=(?P<weight>\d+(?:\.\d+)?|\.\d+)", re.DOTALL)
FIRST_ROWS = re.compile(rf"({NAME})\[:(\d+)\]")


@dataclass(frozen=True, kw_only=True)
class SetReference:
    """A data set, or a part of a data set."""

    place: str
    """`user/name` on the hub, or a path or glob."""
    is_hub: bool = False
    revision: str = "main"
    """Branch, tag or commit on the hub."""
    config: str = ""
    """Configuration of the data set; "" = the default configuration."""
    split: str = ""
    """Split in the syntax of `datasets`; "" = `train`."""
    columns: tuple[tuple[str, str], ...] = ()
    """Pairs of a Slipway column name, such as `text`, and the data set's column name."""

    @property
    def words(self) -> str:
        """Return the reference as a string, without columns."""
        revision = f"@{self.revision}" if self.revision != "main" else ""
        config = f"/{self.config}" if self.config else ""
        return (HUB if self.is_hub else "") + self.place + revision + config + (f":{self.split}" if self.split else "")

    @property
    def first_rows(self) -> int | None:
        """Return N for a split `name[:N]`, otherwise None."""
        found = FIRST_ROWS.fullmatch(self.split)
        return int(found[2]) if found else None

    @property
    def split_name(self) -> str:
        """Return the split without `[:N]`."""
        return FIRST_ROWS.sub(r"\1", self.split) or "train"


def parse(words: str) -> SetReference:
    """Return the parsed reference. Raises ConfigError for an invalid hf:// reference."""
    found = None if "://" in words and not words.startswith(HUB) else COLUMNS.search(words)  # a URL has a query too
    given = [tuple(one.split("=", 1)) for one in found["columns"].split("&")] if found else []
    rest = words[: found.start()] if found else words
    if not words.startswith(HUB):
        local = HERE.fullmatch(rest)
        is_split = local is not None and local["split"] and "://" not in rest and not Path(rest).expanduser().exists()
        place, split = (local["place"], local["split"]) if local and is_split else (rest, "")
        return SetReference(place=place, split=split, columns=tuple(given))  # type: ignore[arg-type]
    hub = ON_THE_HUB.fullmatch(rest)
    if not hub:
        raise ConfigError(
            f"{words}: expected hf://user/name, optionally with @revision, /config, :split[:1000] and ?text=column"
        )
    values = {name: value for name, value in hub.groupdict().items() if value}
    return SetReference(is_hub=True, columns=tuple(given), **values)  # type: ignore[arg-type]


def parse_mixture(words: str) -> list[tuple[str, float]]:
    """Return the sources of a mixture with weights; [] if `words` is a single source.

    Raises ConfigError if a weight is missing for some sources, or is 0.
    """
    parts = words.split(",")
    found = [WEIGHTED.fullmatch(one.strip()) for one in parts]
    if len(parts) < 2 or not any(found) or Path(words).expanduser().exists():
        return []
    if not all(found):
        without = next(part for part, one in zip(parts, found, strict=True) if not one)
        raise ConfigError(f"{words}: {without.strip()!r} has no weight; write NAME=WEIGHT for each")
    mixed = [(one["words"], float(one["weight"])) for one in found if one]
    if any(weight <= 0 for _, weight in mixed):
        raise ConfigError(f"{words}: a weight must be above 0")
    return mixed
