"""Check for the conversion of a model to GGUF, for `chat --engine llama.cpp` and `export --bits gguf`."""

from pathlib import Path

from flows.models.find_model import GGUF_TYPES, gguf_problem, shape_of
from infra.errors import UsageError

LLAMA = "llama.cpp"


def refuse_gguf(folder: Path, name: str, kind: str = "", instead: str = "") -> None:
    """Raise UsageError for a model that cannot become a GGUF file, before an environment is built.

    kind: GGUF type; "" = the default of the model's shape. instead: suggestion for the message; "" = the types that
    fit.
    """
    try:
        config = shape_of(folder)
        problem = gguf_problem(folder, config, kind)
        fitting = [one for one in GGUF_TYPES if problem and not gguf_problem(folder, config, one)]
    except (OSError, ValueError):
        return  # the converter reports an unreadable model
    if problem:
        types = f"these types fit: --gguf-type {' or '.join(fitting)}" if fitting else "leave out --bits gguf"
        said = f"{name} cannot become a GGUF file of {kind or config.gguf_type}: {problem}"
        raise UsageError(f"{said}; {instead or types}")
