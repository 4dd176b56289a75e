"""Questions about the model's training text: about Python's library, and about other topics.

A small model cannot learn five thousand functions in a minute, and a model that must guess invents answers. The model
therefore learns the first sentence of the documentation for well-known names, and for every other name learns to answer
that the name is unknown.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import dropwhile, takewhile
from pathlib import Path
from random import Random
from typing import Any

from data.chat import smalltalk
from data.chat.phrasing import fill, make_conversation, vary, write_lines
from data.config import QuestionsSpec
from data.errors import InputError
from data.shards.shards import read, read_manifest, shard_paths
from data.text.batches import documents

WELL_KNOWN = {
    "": 36, "str": 12, "list": 8, "dict": 5, "set": 2, "os": 9, "os.path": 10, "json": 4, "re": 7, "math": 8,
    "random": 6, "time": 5, "sys": 2, "itertools": 6, "functools": 4, "collections": 5, "shutil": 4, "subprocess": 4,
    "copy": 2, "glob": 1, "pathlib": 1, "statistics": 2, "textwrap": 2, "tempfile": 2, "heapq": 2, "bisect": 1,
    "hashlib": 2, "base64": 2, "string": 1, "asyncio": 3, "threading": 1, "pickle": 2, "inspect": 1,
    "urllib.parse": 2, "logging": 3, "operator": 1, "struct": 2, "pprint": 1, "zlib": 2,
}  # fmt: skip
"""Number of names taught per module: famous names first, then the shortest names."""
_FAMOUS = """
    range open int str list set tuple bool map filter min max os.getcwd os.listdir os.remove os.mkdir
    os.makedirs os.rename os.getenv os.rmdir os.getpid os.path.splitext json.loads json.dumps json.load
    json.dump re.sub re.fullmatch math.sqrt math.floor math.log time.sleep time.time time.perf_counter
    time.strftime itertools.product itertools.combinations itertools.permutations itertools.islice
    itertools.repeat functools.partial functools.reduce functools.lru_cache collections.Counter
    collections.deque collections.defaultdict collections.OrderedDict shutil.copytree subprocess.Popen
    subprocess.check_output pathlib.Path base64.b64encode base64.b64decode string.Template tempfile.mkdtemp
    tempfile.mkstemp hashlib.sha256 pickle.loads list.append str.replace str.format str.startswith
    str.endswith set.union threading.Thread logging.warning logging.getLogger urllib.parse.quote struct.pack
    inspect.signature pprint.pprint zlib.compress zlib.decompress operator.itemgetter len print sum sorted abs
    round isinstance enumerate input repr any all re.compile re.match re.search re.findall re.split str.split
    str.join str.strip str.upper str.lower list.pop list.sort list.extend dict.get dict.pop random.randint
    random.choice random.shuffle os.path.exists os.path.isfile os.path.isdir os.path.basename os.path.dirname
    os.path.abspath os.path.join math.ceil math.sin math.cos math.exp math.gcd shutil.copy shutil.move
    shutil.rmtree sys.exit itertools.groupby collections.namedtuple subprocess.run copy.deepcopy hasattr
    setattr next iter
"""
FAMOUS = frozenset(_FAMOUS.split())
"""Names taught first in a module, regardless of length."""
CALL = re.compile(r"\s*[\w.]+\(.*(?:\)|->.*)\s*")
LONGEST = 160  # maximum characters of a taught sentence
UNKNOWN_TRAINED, UNKNOWN_HELDOUT, PHRASINGS = 800, 120, 10

ASKED = (
    "What does {name} do?", "What does {name} do?", "What is {name}?", "Explain {name}.", "What is {name} for?",
    "Tell me about {name}.", "How does {name} work?", "Describe {name}.", "What is the use of {name}?",
    "What does the function {name} do?", "What does {name}() do?", "{name}?", "Tell me what {name} does.",
    "In Python, what does {name} do?", "What does {name} do in Python?", "I saw {name} in a program, what does it do?",
    "Do you know {name}?", "Define {name}.", "What does Python's {name} do?", "Say what {name} is.",
    "What is the purpose of {name}?", "What is {name}() for?",
    "Explain the function {name}.", "What is {name} used for?", "I have never seen {name}, what is it?",
    "When do people use {name}?", "I am looking for {name}.", "What is meant by {name}?",
)  # fmt: skip
HELDOUT = (
    "What happens when I call {name}?", "Explain what {name} does.", "What would {name} do?", "What can {name} do?",
    "I do not understand {name}, what does it do?", "Why would I use {name}?", "Give me the meaning of {name}.",
)  # fmt: skip
UNKNOWN = (
    # The name is not repeated, because a model of this size copies names wrongly.
    "I do not know that one. I only know the best-known functions of Python.",
    "I do not know what that does.",
    "I do not know that function. Try os.path.join or json.loads.",
)
INVENTED = {
    "module": ("foo", "bar", "spam", "eggs", "os", "os.path", "json", "math", "re", "random", "quux", "mylib", "utils",
               "sys", "time", "requests", "pandas", "app.models", "widget", "list", "str", "helper", "core"),
    "verb": ("get", "frob", "make", "load", "do", "find", "bar", "merge", "send", "check", "run", "zap", "foo"),
    "noun": ("baz", "thing", "user", "all", "widget", "page", "_it", "data", "blob", "name", "2", "table", "spam", "x"),
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A name of the library, and the first sentence of its documentation."""

    name: str
    sentence: str


def entries(texts: Iterable[str]) -> list[Entry]:
    """Return the functions and classes among pydocs documents with a usable first sentence, by name."""
    found = {}
    for text in texts:
        head, _, words = text.partition("\n\n")
        name = re.fullmatch(r"(?:class )?([A-Za-z_][\w.]*)(?:\(.*\))?", head)
        sentence = first_sentence(words)
        if name and sentence:
            found[name[1]] = Entry(name[1], sentence)
    return sorted(found.values(), key=lambda one: one.name)


def first_sentence(words: str) -> str:
    """Return the first sentence of a docstring on one line, or "" if the docstring does not begin with short prose."""
    lines = dropwhile(lambda line: not line.strip() or CALL.fullmatch(line), words.split("\n"))
    paragraph = " ".join(" ".join(takewhile(str.strip, lines)).split()).replace("`", "")
    paragraph = re.sub(r"^[\w.]+\([^)]*\) -+>? ", "", paragraph)  # some docstrings begin with the call and a dash
    paragraph = paragraph[:1].upper() + paragraph[1:]
    sentence = re.split(r"(?<=\w\w[.!?])\s", paragraph)[0].rstrip(".:;, ")
    is_plain = re.match(r"[A-Z][\w-]*[,;]? [\w'\"(\[]", sentence) and not re.search(
        r"->|>>>|\*\*|:\w+:|::|\w\(.*=", sentence
    )
    fits = len(sentence) < LONGEST and len(sentence.split()) > 2
    return sentence + "." if is_plain and fits else ""


def taught(known: Iterable[Entry]) -> list[Entry]:
    """Return the well-known entries, by module."""
    by_module: dict[str, list[Entry]] = {module: [] for module in WELL_KNOWN}
    for one in known:
        module, _, name = one.name.rpartition(".")
        if module in by_module and (one.name in FAMOUS or not name[0].isupper()):
            by_module[module].append(one)
    return [
        one
        for module, count in WELL_KNOWN.items()
        for one in sorted(by_module[module], key=lambda one: (one.name not in FAMOUS, len(one.name), one.name))[:count]
    ]


def make(spec: QuestionsSpec, text: Path, folder: Path) -> dict[str, Any]:
    """Write pydocs.train, pydocs.heldout, other.train and other.heldout (.jsonl) into `folder`; return row counts.

    Names come from `text` if its source is pydocs, otherwise from the running Python, so that every model gets taught
    names. Both parts of the text are read: held-out documents only measure prediction of unseen text, before any
    question is asked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pydocs_train, pydocs_heldout, num_taught = _about_python(entries(_texts(text)), Random(f"pydocs {spec.seed}"))
    other_train, other_heldout = smalltalk.conversations(spec.seed)
    files: dict[str, list[dict[str, Any]]] = {
        "pydocs.train": [{"messages": one} for one in pydocs_train],
        "pydocs.heldout": pydocs_heldout,
        "other.train": [{"messages": one} for one in other_train],
        "other.heldout": [{"messages": one, "expected": one[-1]["content"]} for one in other_heldout],
    }
    counts = {name: write_lines(folder / f"{name}.jsonl", rows) for name, rows in files.items()}
    return {"taught": num_taught, **counts}


def _texts(text: Path) -> Iterable[str]:
    paths = [path for part in ("train", "val") for path in shard_paths(text, part)]
    if paths and read_manifest(paths[0].parent)["source"] == "pydocs":
        return read(paths)
    return (document.text for document in documents("pydocs"))


def _about_python(known: list[Entry], chance: Random) -> tuple[list[list[dict[str, str]]], list[dict[str, Any]], int]:
    """Return (training conversations, held-out rows with expected answers, number of taught names)."""
    core = taught(known)
    if not core:
        raise InputError(
            "the text names none of Python's well-known functions, so no questions can be made; use a longer text"
        )
    names = {one.name for one in core}
    rest = [one for one in known if one.name not in names]
    chance.shuffle(rest)
    strangers, unseen = rest[:UNKNOWN_TRAINED], rest[UNKNOWN_TRAINED:][:UNKNOWN_HELDOUT]
    invented = [fill("{module}.{verb}_{noun}", INVENTED, chance) for _ in range(UNKNOWN_TRAINED // 2)]

    def ask(templates: tuple[str, ...], name: str, answer: str) -> list[dict[str, str]]:
        return make_conversation(fill(vary(chance.choice(templates), chance), {"name": [name]}, chance), answer)

    pairs = [(one.name, one.sentence) for one in core for _ in range(PHRASINGS)]
    pairs += [(name, chance.choice(UNKNOWN)) for name in (*(one.name for one in strangers), *invented)]
    trained = [make_conversation(f"What does {one.name} do?", one.sentence) for one in core]
    trained += [ask(ASKED, name, answer) for name, answer in pairs]
    chance.shuffle(trained)
    heldout = [
        {"messages": ask(templates, one.name, one.sentence), "expected": one.sentence, "taught": part is not unseen}
        for templates, part in ((HELDOUT, core[::2]), (ASKED, unseen))
        for one in part
    ]
    return trained, heldout, len(core)
