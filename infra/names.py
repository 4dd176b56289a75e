"""Names: readable names for runs, random tokens for billable objects."""

import difflib
import secrets
import string
from collections.abc import Collection, Iterable

from infra.errors import UsageError
from store.untrusted_input import is_part

ADJECTIVES = (
    "able agile amber ample azure bold brave breezy bright brisk calm clear clever cosy crisp daring deft eager "
    "early easy fair fast fine fleet fond free fresh frank gentle glad golden good grand happy hardy hearty honest "
    "jolly keen kind lively loyal lucky mellow merry mighty mild modest neat nimble noble patient plain proud quick "
    "quiet ready rosy round salty sharp silver sleek smart snug solid spry steady still stout strong sunny sure "
    "swift tidy tough true trusty upbeat vivid warm wise witty young zesty"
).split()
ANIMALS = (
    "albatross auk avocet badger bear beaver bison bittern boar camel cod cormorant crab crane curlew deer dipper "
    "dolphin dove duck dunlin eagle eel egret eider elk falcon finch fox frog gannet gecko goose grebe grouse gull "
    "hare heron herring horse ibis jackdaw jay kestrel kite koala lark lemur lion llama lobster loon lynx mackerel "
    "magpie marten moose newt osprey otter owl oyster panda pelican perch petrel pike plover porpoise puffin puma "
    "quail raven robin salmon seal shrew skua sparrow squid stork swan swift tern thrush tiger toad trout tuna "
    "turtle vole walrus weasel whale wolf wren yak zebra"
).split()
_LETTERS = string.ascii_lowercase + string.digits


def run_name(taken: Collection[str] = (), stem: str = "") -> str:
    """Return a new readable run id such as `brave-otter-3`, numbered one above the largest number in `taken`.

    `stem` replaces the random words before the number.
    """
    numbers = (name.rpartition("-")[2] for name in taken)
    number = 1 + max((int(one) for one in numbers if one.isascii() and one.isdigit()), default=0)
    return f"{stem or f'{secrets.choice(ADJECTIVES)}-{secrets.choice(ANIMALS)}'}-{number}"


def check_name(name: str) -> str:
    """Return `name` if valid as a file name and a single word. Raises UsageError."""
    if not is_part(name):
        raise UsageError(
            f"{name!r} is not a valid name: use 1 to 128 letters, digits, '.', '_' and '-', not beginning with '.' "
            "or '-'"
        )
    return name


def match(prefix: str, names: Iterable[str]) -> str:
    """Return the name that equals `prefix` or uniquely matches the prefix. Raises UsageError with the candidates."""
    known = sorted(set(names))
    found = [name for name in known if name.startswith(prefix)]
    if prefix in known or len(found) == 1:
        return prefix if prefix in known else found[0]
    if found:
        raise UsageError(f"{prefix!r} matches several names: {', '.join(found)}")
    near = difflib.get_close_matches(prefix, known, 3) or known[-10:]
    raise UsageError(f"{prefix!r} not found; " + (f"available: {', '.join(near)}" if near else "none exists yet"))


def similar(word: str, names: Iterable[str], most: int = 3) -> list[str]:
    """Return the most similar names, each compared as a whole and by the part after the last slash."""
    parts = [(part, name) for name in names for part in (name, name.rpartition("/")[2])]
    near = difflib.get_close_matches(word, dict(parts), most)
    return list(dict.fromkeys(name for each in near for part, name in parts if part == each))[:most]


def random_word(length: int) -> str:
    """Return a random word of `length` lowercase letters and digits."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def new_token(installation: str) -> str:
    """Return a new token `sw1-<installation>-<random>` of 29 characters: the unique key of one billable object."""
    return f"sw1-{installation}-{random_word(16)}"
