"""Held-out questions of a model in the store, for benchmarks that compare two ways to answer."""

import sys
from pathlib import Path

from store.artifacts.artifacts import Store
from trainer.evaluation import multi_turn
from trainer.evaluation.multi_turn import TurnsQuestion
from trainer.plan import load_persona


def folder_of(store: Store, name: str) -> Path:
    """Return the folder of an artifact; exit if the store does not have the artifact."""
    found = store.check(name)
    if found.problem:
        sys.exit(f"{name}: {found.problem}; to make the model: ./inv launch --phase sft+dlm")
    return store.path(name, found.fingerprint)


def questions_of(store: Store) -> tuple[list[TurnsQuestion], str]:
    """Return the held-out questions and the name of the persona."""
    folder = folder_of(store, "identity_conversations")
    some = multi_turn.read("identity", folder / "identity_conversations.heldout.jsonl")
    about = next(
        one for one in store.artifacts() if one.name.startswith("datasets/") and one.name.endswith("questions")
    )
    for kind in ("pydocs", "other"):
        some += multi_turn.read(kind, folder_of(store, about.name) / f"{kind}.heldout.jsonl")
    return some, load_persona(Path(__file__).parent.parent / "data" / "persona.yaml").name
