"""`eval`: the numbers that say whether a model is worth talking to, and how sure they are.

In: `EvalSpec`. Out: bits per byte beside gzip and xz; the share of held-out identity questions answered with the name;
the share of answers about anything else that leak it; the share of held-out pydocs questions answered with the right
first words or an admission; the share of right answers of each task. Only what there is material for. Under `measures`
each with its interval, what it was measured on, and every row or question, so that two models can be compared.
"""

import hashlib
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from data import tokenizer, tokens
from data.anchors import anchors
from data.chat import read_conversations
from data.loader import heldout
from trainer import export, intervals, machine, tasks
from trainer.config import EvalSpec
from trainer.errors import Refused
from trainer.evaluate import admits_not_knowing, answers, begins_like, rows_of_text
from trainer.model import Decoder

EXAMPLES = 3
ROW_LEN = 256  # tokens of context for held-out text, where the model holds as many
TEXT, SHARE = "bits per byte", "share"  # units
RATIO = "ratio estimator, linearised, over rows"
WILSON = "Wilson score"


def scores(spec: EvalSpec) -> dict[str, Any]:
    """Raises Refused, DataError."""
    machine.prepare()
    folder = export.folder_of_model(Path(spec.model))
    if (spec.identity or spec.questions) and not spec.name:
        raise Refused("eval of answers needs the persona's name")
    wanted = [tasks.read(Path(one)) for one in spec.tasks]  # what is wrong with them is said before any work
    if len({one.name for one in wanted}) < len(wanted):
        raise Refused(f"two tasks have the same name: {', '.join(sorted(one.name for one in wanted))}")
    export.check_tokenizer(folder)
    model, words = export.read(folder).eval(), tokenizer.load(folder)
    found: dict[str, Any] = {"model": spec.model, "params": model.config.num_params}
    measures: dict[str, Any] = {}

    def ask(path: Path) -> list[tuple[str, str, str]]:
        """(question, right answer, what the model says) of every held-out conversation."""
        if not path.is_file():
            raise Refused(f"{path} is missing")
        asked = list(read_conversations(path))
        said = answers(model, words, asked)
        return [(one[-2]["content"], one[-1]["content"], answer) for one, answer in zip(asked, said, strict=True)]

    if spec.text and (val := sorted((Path(spec.text) / "val").glob("*.txt"))):
        measures["text"] = of_text(model, words, folder, val)
        found |= {"bits_per_byte": measures["text"]["value"], "loss": measures["text"]["loss"]["value"]}
        found |= anchors(val)
    name = spec.name.lower()
    if spec.identity:
        path = Path(spec.identity) / "identity_conversations.heldout.jsonl"
        asked = ask(path)
        truths = [name in answer.lower() for _, _, answer in asked]
        found |= score("identity", asked, truths, want=True)
        measures["identity"] = of_share(truths, [path])
    if spec.questions:
        paths = [Path(spec.questions) / f"{kind}.heldout.jsonl" for kind in ("pydocs", "other")]
        known = ask(paths[0])
        right = [begins_like(said, expected) for _, expected, said in known]
        honest = [ok or admits_not_knowing(said) for ok, (_, _, said) in zip(right, known, strict=True)]
        found |= score("pydocs", known, honest, want=True) | {"pydocs_right": sum(right) / len(right)}
        measures["pydocs"] = of_share(honest, paths[:1])
        other = [*known, *ask(paths[1])]
        leaks = [name in answer.lower() for _, _, answer in other]
        found |= score("leaks", other, leaks, want=False)
        measures["leaks"] = of_share(leaks, paths)
    asking = tasks.Asking(model, words, spec.as_text)
    for task, path in zip(wanted, spec.tasks, strict=True):
        chance = {"chance": task.chance} if task.is_choice else {}
        measures[f"task {task.name}"] = of_share(asking.right(task), [Path(path)], as_text=spec.as_text) | chance
    return {**found, "measures": measures}


def of_text(model: Decoder, words: tokenizer.Tokenizer, folder: Path, val: Sequence[Path]) -> dict[str, Any]:
    """Bits per byte of held-out shards, and the loss, each with its interval."""
    length = min(ROW_LEN, model.config.max_position_embeddings)
    with tempfile.TemporaryDirectory() as scratch:
        shard = Path(scratch) / "val.bin"
        tokens.write(val, words, shard)
        rows = rows_of_text(model, heldout([shard], folder, length), words.token_bytes())
    counted = [at for at, size in enumerate(rows["bytes"]) if size]
    rows = {name: [values[at] for at in counted] for name, values in rows.items()}
    bits = intervals.ratio(rows["nats"], rows["bytes"], 1 / math.log(2))
    loss = intervals.ratio(rows["nats"], rows["tokens"])
    return {
        **bits.plain(),
        "unit": TEXT,
        "loss": loss.plain(),
        "method": RATIO,
        "material": digest(val),
        "rows_of": f"{words.sha256[:12]}, {length} tokens",
        "rows": {name: rows[name] for name in ("nats", "bytes")},
    }


def of_share(truths: Sequence[bool], files: Sequence[Path], **more: Any) -> dict[str, Any]:
    found = intervals.share(sum(truths), len(truths))
    rows = [int(one) for one in truths]
    return {**found.plain(), "unit": SHARE, "of": len(rows), "method": WILSON, "material": digest(files), **more,
            "rows": rows}  # fmt: skip


def digest(files: Sequence[Path]) -> str:
    """What the questions were: two measures of the same ones can be compared one by one."""
    found = hashlib.sha256()
    for path in files:
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]


def score(what: str, asked: list[tuple[str, str, str]], truths: Iterable[bool], want: bool) -> dict[str, Any]:
    """The share that is true, out of how many, and some of those that are not as wanted."""
    found = list(truths)
    odd = [
        {"question": question, "answer": answer}
        for (question, _, answer), truth in zip(asked, found, strict=True)
        if truth != want
    ]
    return {what: sum(found) / len(found), f"{what}_asked": len(found), f"{what}_odd": odd[:EXAMPLES]}
