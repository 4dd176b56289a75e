"""Command-line flags as fields of frozen records, with type, default, help, unit and group.

The command line, its help, flag files, JSON Schemas and the reference pages are all generated from these fields.
`flags_of` turns a record with fields made by `flag` into a `Flag` per field.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

R = TypeVar("R")
KINDS = (bool, int, float)
SECRET = "KEY[=VALUE]"  # unit of a flag with secret values


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A command-line flag, derived from a field of a record."""

    name: str
    """Name of the field."""
    spelling: str
    """Name of the flag on the command line, without dashes."""
    aliases: tuple[str, ...]
    """Alternative spellings; a single letter takes a single dash."""
    kind: type
    """Type of a value: `str`, `int`, `float` or `bool`."""
    is_many: bool
    """True if the flag may be repeated."""
    default: Any
    about: str
    unit: str
    group: str
    is_word: bool
    """True if the value may be given without the flag: `inv logs brave-otter-3`."""
    is_bare: bool
    """True if the flag may be given without a value."""
    is_secret: bool
    """True if the text after `=` in the values is a secret, never shown."""
    minimum: int | None
    """Smallest value that a user may type; the default may be smaller, to stand for no choice."""
    read: Callable[[Sequence[str]], Any] | None
    """Converts the typed words to the field's value; None if the words are the value."""

    def value(self, said: Any) -> Any:
        """Return the field's value for typed input: a tuple for repeated words, converted by `read` if set."""
        words = tuple(said or ()) if self.is_many else said
        return self.read(words) if self.read else words


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A record with the names of the given flags, regardless of value, and the flags that packs add."""

    typed: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)
    """Names of the fields that were typed, or set in a flag file."""
    added: tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    """Records of flags, one for each pack that adds flags to the command."""

    def added_record(self, record: type[R]) -> R:
        """Return the added record of this type, or the record with its defaults if the command has none."""
        return next((one for one in self.added if isinstance(one, record)), record())


def flag(
    default: Any,
    about: str,
    *,
    unit: str = "",
    group: str = "",
    also: Sequence[str] = (),
    word: bool = False,
    bare: bool = False,
    spelled: str = "",
    least: int | None = None,
    read: Callable[[Sequence[str]], Any] | None = None,
) -> Any:
    """Return a dataclass field for a flag.

    `about`: help text. `unit`: unit of the value: "GB", "USD", "duration", SECRET. `group`: section title in the help.
    `also`: alternative spellings. `word`: the value may be a bare word. `bare`: the value may be omitted. `spelled`:
    spelling if different from the field name. `least`: smallest value that may be typed. `read`: converts repeated
    words to the value.
    """
    meta = {
        "about": about,
        "unit": unit,
        "group": group,
        "also": tuple(also),
        "word": word,
        "bare": bare,
        "spelled": spelled,
        "least": least,
        "read": read,
    }
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: MappingProxyType(dict(default)), metadata={"flag": meta})
    return dataclasses.field(default=default, metadata={"flag": meta})


def copy_flag(record: type, name: str, **other: Any) -> Any:
    """Return a copy of the flag `name` of `record` with the given changes, such as `default`."""
    one = next(one for one in dataclasses.fields(record) if one.name == name)
    meta = {**one.metadata["flag"], **{key: value for key, value in other.items() if key != "default"}}
    return flag(other.get("default", one.default), meta.pop("about"), **meta)


def flags_of(record: type) -> tuple[Flag, ...]:
    """Return the flags of a record in field order; skip other fields."""
    hints = typing.get_type_hints(record)
    found = []
    for one in dataclasses.fields(record):
        meta = one.metadata.get("flag")
        if meta is None:
            continue
        kinds = typing.get_args(hints[one.name]) or (hints[one.name],)
        is_many = meta["read"] is not None or typing.get_origin(hints[one.name]) is tuple
        kind = str if is_many or str in kinds else next((kind for kind in KINDS if kind in kinds), str)
        default = () if one.default is dataclasses.MISSING else one.default
        spelled = meta["spelled"] or one.name.rstrip("_").replace("_", "-")
        found.append(
            Flag(
                name=one.name,
                spelling=spelled,
                aliases=meta["also"],
                kind=kind,
                is_many=is_many,
                default=default,
                about=meta["about"],
                unit=meta["unit"],
                group=meta["group"],
                is_word=meta["word"],
                is_bare=meta["bare"],
                is_secret=meta["unit"] == SECRET,
                minimum=meta["least"],
                read=meta["read"],
            )
        )
    return tuple(found)


def nondefault_flags(spec: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the non-default flags of a record, except `but`, in the form of a flag file.

    The flags that packs add are included.
    """
    found: dict[str, Any] = {}
    for one in flags_of(type(spec)):
        value = getattr(spec, one.name)
        if one.name not in but and value != one.default and not (one.read and not value):
            plain = dict(value) if isinstance(value, Mapping) else list(value) if one.is_many else value
            found[one.spelling] = plain
    return found | {
        name: value for one in getattr(spec, "added", ()) for name, value in nondefault_flags(one, but).items()
    }


def given_flag_names(spec: Typed) -> set[str]:
    """Return the field names of the flags that were typed or differ from the default, with the flags of packs."""
    words, records = nondefault_flags(spec), (spec, *spec.added)
    return {*spec.typed, *(one.name for each in records for one in flags_of(type(each)) if one.spelling in words)}


def masked_flags(spec: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the flags like `nondefault_flags`, for display: values of secrets are masked."""
    records = (spec, *getattr(spec, "added", ()))
    secrets = {one.spelling for record in records for one in flags_of(type(record)) if one.is_secret}
    return {
        name: [re.sub("=.*", "=***", one, flags=re.DOTALL) for one in value] if name in secrets else value
        for name, value in nondefault_flags(spec, but).items()
    }


def command_words(spec: Any, but: Collection[str] = ()) -> list[str]:
    """Return command-line words with the same flags, for a child process and not for display."""
    words = []
    for spelled, value in nondefault_flags(spec, but).items():
        if value is False:
            continue
        if isinstance(value, Mapping):
            value = [f"{name}={text}" for name, text in value.items()]
        words += [
            f"--{spelled}" if each is True else f"--{spelled}={each}"
            for each in (value if isinstance(value, list) else [value])
        ]
    return words
