"""`eval`: the numbers that say whether a model is worth talking to.

In: `EvalSpec`. Out: bits per byte beside gzip and xz; the share of held-out identity questions answered with the name;
the share of answers about anything else that leak it; the share of held-out pydocs questions answered with the right
first words or an admission. Only what there is material for.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from data import tokenizer, tokens
from data.anchors import anchors
from data.chat import read_conversations
from data.loader import heldout
from trainer import export, machine
from trainer.config import EvalSpec
from trainer.errors import Refused
from trainer.evaluate import admits_not_knowing, answers, begins_like, bits_per_byte

EXAMPLES = 3


def scores(spec: EvalSpec) -> dict[str, Any]:
    """Raises Refused, DataError."""
    machine.prepare()
    folder = export.folder_of_model(Path(spec.model))
    if (spec.identity or spec.questions) and not spec.name:
        raise Refused("eval of answers needs the persona's name")
    model, words = export.read(folder).eval(), tokenizer.load(folder)
    found: dict[str, Any] = {"model": spec.model, "params": model.config.num_params}

    def ask(path: Path) -> list[tuple[str, str, str]]:
        """(question, right answer, what the model says) of every held-out conversation."""
        if not path.is_file():
            raise Refused(f"{path} is missing")
        asked = list(read_conversations(path))
        said = answers(model, words, asked)
        return [(one[-2]["content"], one[-1]["content"], answer) for one, answer in zip(asked, said, strict=True)]

    if spec.text and (val := sorted((Path(spec.text) / "val").glob("*.txt"))):
        with tempfile.TemporaryDirectory() as scratch:
            shard = Path(scratch) / "val.bin"
            tokens.write(val, words, shard)
            length = min(256, model.config.max_position_embeddings)
            found |= bits_per_byte(model, heldout([shard], folder, length)) | anchors(val)
    name = spec.name.lower()
    if spec.identity:
        asked = ask(Path(spec.identity) / "identity_conversations.heldout.jsonl")
        found |= score("identity", asked, (name in answer.lower() for _, _, answer in asked), want=True)
    if spec.questions:
        known = ask(Path(spec.questions) / "pydocs.heldout.jsonl")
        right = [begins_like(said, expected) for _, expected, said in known]
        honest = (ok or admits_not_knowing(said) for ok, (_, _, said) in zip(right, known, strict=True))
        found |= score("pydocs", known, honest, want=True) | {"pydocs_right": sum(right) / len(right)}
        other = [*known, *ask(Path(spec.questions) / "other.heldout.jsonl")]
        found |= score("leaks", other, (name in answer.lower() for _, _, answer in other), want=False)
    return found


def score(what: str, asked: list[tuple[str, str, str]], truths: Iterable[bool], want: bool) -> dict[str, Any]:
    """The share that is true, out of how many, and some of those that are not as wanted."""
    found = list(truths)
    odd = [
        {"question": question, "answer": answer}
        for (question, _, answer), truth in zip(asked, found, strict=True)
        if truth != want
    ]
    return {what: sum(found) / len(found), f"{what}_asked": len(found), f"{what}_odd": odd[:EXAMPLES]}
