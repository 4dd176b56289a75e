"""The command `tokenizer.eval`: compression of text by a tokenizer, compared with GPT-2 and GPT-4."""

from dataclasses import dataclass
from pathlib import Path

from infra.flags import flag
from infra.settings import Settings
from scripts.cli import context, local_step
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.data.tokenizer_text import DEFAULT_OUT, text_folder
from scripts.models import scores_text


@dataclass(frozen=True, kw_only=True)
class TokenizerEvalFlags(Output):
    tokenizer: str = flag("", "folder of a tokenizer (default: var/tokenizer, else the tokenizer of the store)")
    source: str = flag("", "source of the held-out text")
    text: str = flag("", "folder of text shards with a held-out part instead", unit="FOLDER")
    partial: bool = flag(False, "use the complete shards of an interrupted --text folder")
    peers: str = flag(
        "", "folder with the .tiktoken files of GPT-2 and GPT-4 (default: tiktoken's cache)", unit="FOLDER"
    )
    download: bool = flag(False, "download missing files of GPT-2 and GPT-4 into the folder")


@command(record=TokenizerEvalFlags, world="", env=True, example="inv tokenizer.eval --tokenizer var/tokenizer")
def eval(spec: TokenizerEvalFlags) -> None:
    """Measure how few tokens a tokenizer needs for text.

    The text is prose, code, numbers, other scripts and held-out text; GPT-2 and GPT-4 are shown for comparison.
    """
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
    """Return `folder`, else var/tokenizer, else the store's tokenizer. Raises UsageError without a tokenizer."""
    if folder:
        return Path(folder).expanduser().absolute()
    made = Path(DEFAULT_OUT).absolute()
    return (
        made
        if (made / "tokenizer.json").is_file()
        else local_step.require_artifact(settings, "tokenizer", "./inv tokenizer")
    )
