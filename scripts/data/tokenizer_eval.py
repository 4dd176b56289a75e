"""The command `tokenizer.eval`: how well a tokenizer compresses text."""

from pathlib import Path

from infra.settings import Settings
from scripts.cli import context, local_step
from scripts.cli.invoke_patch import print_json
from scripts.data.flags import TokenizerEvalFlags
from scripts.data.tokenizer_text import DEFAULT_OUT, text_folder
from scripts.models import scores_text


def tokenizer_eval(spec: TokenizerEvalFlags) -> None:
    settings = context.settings(source=spec.source)
    folder = tokenizer_folder(settings, spec.tokenizer)
    inputs = {"tokenizer": str(folder), "text": str(text_folder(settings, spec.source, spec.text, spec.json))}
    given = str(Path(spec.peers).expanduser().absolute()) if spec.peers else ""
    compared = {"peers": given, "download": spec.download, "partial": spec.partial}
    config = {"out": inputs["tokenizer"], "inputs": inputs, "spec": compared}
    found = local_step.run("compression", ("-m", "data", "compression"), config, settings, spec.json)
    if spec.json:
        print_json(found)
    else:
        scores_text.show_compression(found)


def tokenizer_folder(settings: Settings, folder: str) -> Path:
    """Return the tokenizer that is meant. Raises UsageError when there is none."""
    if folder:
        return Path(folder).expanduser().absolute()
    made = Path(DEFAULT_OUT).absolute()
    return (
        made if (made / "tokenizer.json").is_file() else local_step.artifact(settings, "tokenizer", "./inv tokenizer")
    )
