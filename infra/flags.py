"""A flag, declared once: a field of a frozen record with its type, default, help, unit and group.

The command line, its help, files of flags, JSON Schemas and the reference pages are all made of these fields. In: a
record whose fields are made by `flag`. Out: a `Flag` for each of them.
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


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag, made of a field of a record."""

    name: str
    """Name of the field."""
    spelled: str
    """Name of the flag as it is typed, without dashes."""
    also: tuple[str, ...]
    """Other spellings; one of a single letter has one dash."""
    kind: type
    """Type of a value: `str`, `int`, `float` or `bool`."""
    is_many: bool
    """True if it may be repeated."""
    default: Any
    about: str
    unit: str
    group: str
    is_word: bool
    """True if its value may be given without the flag: `inv logs brave-otter-3`."""
    is_bare: bool
    """True if the flag may stand without a value."""
    is_secret: bool
    """True if what stands behind `=` in its values is shown to nobody."""
    least: int | None
    """The smallest value that may be given: its default may stand for a choice that nobody made."""
    read: Callable[[Sequence[str]], Any] | None
    """Converts the words that were typed to the field's value; None where the words are the value."""

    def value(self, said: Any) -> Any:
        """Return the field's value of what was typed: words become a tuple, or what `read` makes of them."""
        words = tuple(said or ()) if self.is_many else said
        return self.read(words) if self.read else words


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A record that knows which of its flags were given, with whatever value, and the flags that packs add to them."""

    typed: frozenset[str] = dataclasses.field(default=frozenset(), compare=False, repr=False)
    """Names of the fields that were typed, or stood in a file of flags."""
    added: tuple[Any, ...] = dataclasses.field(default=(), repr=False)
    """A record of flags for each pack that adds some to the command."""

    def of(self, record: type[R]) -> R:
        """Return the record of that type among those of packs; one with its defaults where the command has none."""
        return next((one for one in self.added if isinstance(one, record)), record())


def flag(
    default: Any, about: str, *, unit: str = "", group: str = "", also: Sequence[str] = (), word: bool = False,
    bare: bool = False, secret: bool = False, spelled: str = "", least: int | None = None,
    read: Callable[[Sequence[str]], Any] | None = None,
) -> Any:  # fmt: skip
    """Return a field of a record that is a flag.

    `about`: its help. `unit`: of its value: "GB", "USD", "duration". `group`: the title under which it stands in the
    help. `also`: other spellings. `word`: it may be given as a bare word. `bare`: its value may be left out. `secret`:
    its values `NAME=VALUE` are secrets. `spelled`: where it is not typed as the field is called. `least`: the smallest
    value that may be given. `read`: makes the value of repeated words.
    """
    meta = {"about": about, "unit": unit, "group": group, "also": tuple(also), "word": word, "bare": bare,
            "secret": secret, "spelled": spelled, "least": least, "read": read}  # fmt: skip
    if isinstance(default, Mapping):
        return dataclasses.field(default_factory=lambda: MappingProxyType(dict(default)), metadata={"flag": meta})
    return dataclasses.field(default=default, metadata={"flag": meta})


def again(record: type, name: str, **other: Any) -> Any:
    """Return a field that is the flag `name` of `record`, but for what is given otherwise, such as `default`."""
    one = next(one for one in dataclasses.fields(record) if one.name == name)
    meta = {**one.metadata["flag"], **{key: value for key, value in other.items() if key != "default"}}
    return flag(other.get("default", one.default), meta.pop("about"), **meta)


def flags_of(record: type) -> tuple[Flag, ...]:
    """Return the flags of a record, in the order of its fields; fields that are no flags are left out."""
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
            Flag(name=one.name, spelled=spelled, also=meta["also"], kind=kind, is_many=is_many, default=default,
                 about=meta["about"], unit=meta["unit"], group=meta["group"], is_word=meta["word"],
                 is_bare=meta["bare"], is_secret=meta["secret"], least=meta["least"], read=meta["read"])
        )  # fmt: skip
    return tuple(found)


def given(spec: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the flags of a record that are not at their defaults, as a file of flags would hold them.

    Those that packs add are among them.
    """
    found: dict[str, Any] = {}
    for one in flags_of(type(spec)):
        value = getattr(spec, one.name)
        if one.name not in but and value != one.default and not (one.read and not value):
            plain = dict(value) if isinstance(value, Mapping) else list(value) if one.is_many else value
            found[one.spelled] = plain
    return found | {name: value for one in getattr(spec, "added", ()) for name, value in given(one, but).items()}


def shown(spec: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the flags as `given` does, for people and programs to see: values of secrets are masked."""
    records = (spec, *getattr(spec, "added", ()))
    secrets = {one.spelled for record in records for one in flags_of(type(record)) if one.is_secret}
    return {
        name: [re.sub("=.*", "=***", one, flags=re.DOTALL) for one in value] if name in secrets else value
        for name, value in given(spec, but).items()
    }


def as_typed(spec: Any, but: Collection[str] = ()) -> list[str]:
    """Return the words of a command line that gives the same flags; for another process of ours, not for people."""
    words = []
    for spelled, value in given(spec, but).items():
        if value is False:
            continue
        if isinstance(value, Mapping):
            value = [f"{name}={text}" for name, text in value.items()]
        words += [f"--{spelled}" if each is True else f"--{spelled}={each}"
                  for each in (value if isinstance(value, list) else [value])]  # fmt: skip
    return words
