"""Write the problems of a task: `train.jsonl`, `val.jsonl`, `test.jsonl`, and `demonstrations.jsonl` for sft."""

from pathlib import Path
from typing import Any

from data.chat.phrasing import write_lines
from data.config import ProblemsSpec
from data.events import emit
from data.problems import published, sort
from data.problems.problem import write


def make(spec: ProblemsSpec, folder: Path) -> dict[str, Any]:
    """Write the problems into `folder`; return the count per file. Raises InputError, DataError."""
    shown: list[Any]
    if spec.task == "sort":
        parts, shown = sort.problems(spec.seed), sort.demonstrations(spec.seed)
    elif spec.task == "file":
        parts, shown = published.of_file(spec), []
    else:
        parts = published.problems(spec)
        shown = published.demonstrations(spec.task, parts[0])
    names = ("train", "val", "test")
    counts = {name: write(folder / f"{name}.jsonl", part) for name, part in zip(names, parts, strict=True)}
    if marks := published.calculator_marks(spec.task, parts[0]) if shown else 0:
        counts["removed_marks"] = marks
        emit("note", text=f"{spec.task}: {marks:,} marks of a calculator, <<...>>, are removed from the demonstrations")
    if bare := published.without_box(spec.task, [one for part in parts for one in part]):
        counts["without_box"] = bare
        emit("note", text=f"{spec.task}: {bare:,} solutions have no \\boxed{{}}: the right answer is the whole text")
    if shown:
        counts["demonstrations"] = write_lines(folder / "demonstrations.jsonl", ({"messages": one} for one in shown))
    return {"task": spec.task, **counts}
