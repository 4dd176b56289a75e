"""The check of a model that becomes a GGUF file, for `chat --engine llama.cpp` and `export --bits gguf`."""

from pathlib import Path

from flows.models.find_model import GGUF_TYPES, gguf_problem, shape_of
from infra.errors import UsageError

LLAMA = "llama.cpp"


def refuse_gguf(folder: Path, name: str, kind: str = "", instead: str = "") -> None:
    """Raise UsageError where a model cannot become such a file, before an environment is made for that.

    kind: "" = the usual one of its shape. instead: what to type then; "" = the types that fit.
    """
    try:
        config = shape_of(folder)
        problem = gguf_problem(folder, config, kind)
        fitting = [one for one in GGUF_TYPES if problem and not gguf_problem(folder, config, one)]
    except (OSError, ValueError):
        return  # what reads it next says what is wrong with it
    if problem:
        types = f"known to fit: --gguf-type {' or '.join(fitting)}" if fitting else "leave out --bits gguf"
        said = f"{name} cannot become a GGUF file of {kind or config.gguf_type}: {problem}"
        raise UsageError(f"{said}; {instead or types}")
