"""The model in `--init`: a folder, a hub repository or an imported artifact, inspected before planning.

The input is `FOLDER`, `hf://user/repo[@revision]` or `imported/NAME`; the result is an `ImportSpec`. For a hub
repository only small files are read here; the steps download the weights. An artifact records the `ImportSpec` of its
import, so that the plan finds the artifact without the original folder.
"""

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from data.config import ENDS_ANSWER, SPECIALS, ConfigError, load
from data.text.remote import hub
from infra.errors import AuthError, UsageError
from infra.names import similar
from infra.settings import Settings
from store import credentials, packs, untrusted_input
from store.artifacts import model_files, sentencepiece, tokenizer_files, vocabulary
from store.artifacts.artifacts import Store
from store.artifacts.tokenizer_files import TOKENIZER_CONFIG, default_template, templates_in, templates_of
from trainer.config import ImportSpec
from trainer.model.huggingface import differences, model_config
from trainer.plan import IMPORTED
from trainer.records import model_formats

TIMEOUT_S = 20.0
MOST_BYTES = 64 << 20  # maximum size of a hub response, such as a file list


def resolve_import(init: str, settings: Settings) -> ImportSpec:
    """Return the import for `--init`. Raise UsageError if the model is missing or unsupported by our decoder."""
    try:
        if init.startswith("hf://"):
            return import_from_hub(init, settings)
        is_there = Path(init).expanduser().exists()
        if not (is_there or init.startswith(IMPORTED)):
            raise UsageError(f"--init {init}: {init} is no folder; {known_inits(init, settings)}")
        return import_from_folder(init) if is_there else import_from_store(init, settings)
    except ConfigError as error:
        raise UsageError(f"--init {init}: {error}") from None


def known_inits(init: str, settings: Settings) -> str:
    """Return the models of the store with a name similar to `init`, as values of `--init`, or the accepted forms."""
    is_local = credentials.kind(settings.store) in ("", "file")
    folder = Path(settings.store.removeprefix("file://")) if is_local else None
    names = [one.name for one in Store(settings.store).artifacts() if not one.problem]
    known = [one for one in names if one.startswith(IMPORTED) or folder and one.split("/")[0].endswith("_checkpoints")]
    near = [one if one.startswith(IMPORTED) else f"{folder}/{one}" for one in similar(init, known)]
    return f"did you mean --init {' or '.join(near)}?" if near else f"give a folder, hf://user/repo or {IMPORTED}NAME"


def import_from_store(init: str, settings: Settings) -> ImportSpec:
    """Return the recorded import of an artifact in the store. Raise UsageError, ConfigError or StoreError."""
    found = Store(settings.store).check(init)
    if found.problem:
        raise UsageError(
            f"--init {init}: {settings.store}: {found.problem}; copy the model into the store: inv ckpt.push FOLDER "
            f"--to {settings.store}"
        )
    told = found.about.get("import")
    if not isinstance(told, Mapping):
        raise UsageError(f"--init {init}: {settings.store} has no record of the import; import the model again")
    spec = load(ImportSpec, told, "import")
    if spec.format:
        model_formats.find_format(spec.format)
    return spec


def import_from_folder(init: str) -> ImportSpec:
    """Return the import of a folder: shape, tokenizer kind and a digest of the files. Raise UsageError."""
    folder = Path(init).expanduser().absolute()
    folder = folder / "hf" if (folder / "hf" / "config.json").is_file() else folder  # one of our artifacts
    if not (folder / "config.json").is_file():
        return import_from_format(init, folder)
    names = {one.name: one for one in folder.iterdir()}
    files = [one for name, one in sorted(names.items()) if one.suffix in (".json", ".safetensors")]
    if not any(one.suffix == ".safetensors" for one in files):
        raise UsageError(
            f"--init {init}: no .safetensors file in the folder; weights are read from .safetensors files only"
        )
    try:
        model = model_config(model_files.load(folder))
        odd = differences(model, map(model_files.header, model_files.weight_files(folder)))
    except untrusted_input.UnusableDocument as error:
        raise UsageError(f"--init {init}: {error}") from None
    if odd:
        raise UsageError(f"--init {init}: the .safetensors files do not match config.json: {'; '.join(odd[:3])}")
    content = hashlib.sha256()
    for one in files:  # weights by size and mtime: hashing gigabytes would slow every plan
        stat = one.stat()
        small = one.suffix == ".json" and stat.st_size < 1 << 26
        content.update(one.name.encode())
        content.update(one.read_bytes() if small else repr((stat.st_size, stat.st_mtime_ns)).encode())
    file, has_pieces = file_of_tokenizer(init, names), False
    try:
        templates = templates_of(folder) if file else {}
        for name in (vocabulary.GENERATION, vocabulary.NAMED) if file else ():
            tokenizer_files.load_if_present(folder, name)
        named = tokenizer_files.named_tokens(folder) if file else {}
        given = [tokenizer_files.load_if_present(folder, name) for name in (TOKENIZER_CONFIG, vocabulary.ADDED)]
    except untrusted_input.UnusableDocument as error:
        raise UsageError(f"--init {init}: {error}") from None
    own_chat = is_foreign(default_template(templates))
    if file:
        try:
            raw = untrusted_input.content(model_files.held(folder, file), vocabulary.MOST_BYTES)
        except (OSError, untrusted_input.UnusableDocument) as error:
            raise UsageError(f"--init {init}: {file}: {error}") from None
        has_pieces = checked_tokenizer(init, file, raw, own_chat)
        content.update(b"" if file == vocabulary.TOKENIZER else raw)
    if own_chat:
        refuse_templates(init, templates, named, file, raw)
        refuse_ids(init, file, raw, *given)
        content.update("\0".join(part for one in sorted(templates.items()) for part in one).encode())
    return ImportSpec(
        source=str(folder),
        model=model,
        has_tokenizer=bool(file),
        content=content.hexdigest()[:12],
        own_chat=own_chat,
        has_pieces=has_pieces,
    )


def import_from_format(init: str, folder: Path) -> ImportSpec:
    """Return the import of a folder in a format supported by a pack. Raise UsageError or ConfigError."""
    name, file = model_formats.detect(folder)
    if not name:
        known = "".join(f"{one.about}, " for one in model_formats.installed().values())
        words = f"no config.json in the folder; give a Hugging Face folder, {known}or hf://user/repo"
        raise UsageError(f"--init {init}: {'; '.join([words, *model_formats.absent()])}")
    found = model_formats.find_format(name)
    return ImportSpec(
        source=str(folder),
        model=found.shape(folder, file),
        has_tokenizer=found.tokenizer(folder) is not None,
        content=found.content(folder, file),
        format=name,
        file=file,
    )


def file_of_tokenizer(init: str, names: Collection[str]) -> str:
    """Return the tokenizer file of a model, or "" without a tokenizer. Raise UsageError for an unsupported file."""
    try:
        return vocabulary.file_of(names)
    except sentencepiece.UnknownKind as error:
        raise UsageError(f"--init {init}: {error}") from None


def checked_tokenizer(init: str, file: str, raw: bytes, own_chat: bool) -> bool:
    """Return whether a tokenizer is of the SentencePiece kind. Raise UsageError for an unsupported tokenizer."""
    if file == sentencepiece.FILE:
        wrong, has_pieces = vocabulary.model_problem(raw), True
    elif not (wrong := vocabulary.import_problem(raw, SPECIALS, own_chat)):
        said = untrusted_input.mapping(
            raw, vocabulary.MOST_BYTES, vocabulary.MOST_VALUES, integer=untrusted_input.clamped
        )
        has_pieces = sentencepiece.is_pieces(said)
    if wrong:
        raise UsageError(f"--init {init}: {file}: {wrong}")
    return has_pieces


def refuse_templates(init: str, templates: Mapping[str, str], named: Mapping[str, str], file: str, raw: bytes) -> None:
    """Raise UsageError if none of the chat templates is named `default`, or if the import would refuse that template.

    named: texts of the named tokens. file, raw: name and content of the tokenizer's file.
    """
    if "default" not in templates:
        names = ", ".join(sorted(templates))
        raise UsageError(f"--init {init}: the chat templates are {names}; a template named default is missing")
    added = None  # of a SentencePiece file, only the conversion knows all added tokens
    if file == vocabulary.TOKENIZER:
        said = untrusted_input.mapping(
            raw, vocabulary.MOST_BYTES, vocabulary.MOST_VALUES, integer=untrusted_input.clamped
        )
        added = [str(one["content"]) for one in said.get("added_tokens") or ()]
    if wrong := packs.load("store.untrusted.templates:problem")(templates["default"], named, added):
        raise UsageError(f"--init {init}: {wrong}")


def refuse_ids(init: str, file: str, raw: bytes, config: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    """Raise UsageError if the files beside a tokenizer.json give a token a different id.

    config: content of tokenizer_config.json. added: content of added_tokens.json.
    """
    if file == vocabulary.TOKENIZER and (wrong := vocabulary.other_ids(raw, config, added)):
        raise UsageError(f"--init {init}: {wrong}; save the tokenizer again with transformers")


def is_foreign(template: str) -> bool:
    """Return whether a chat template is not ours; False for "" (no template)."""
    return bool(template) and ENDS_ANSWER not in template


def import_from_hub(init: str, settings: Settings) -> ImportSpec:
    """Return the import of a hub repository, with a branch or tag pinned to the current commit."""
    repo, _, revision = init.removeprefix("hf://").strip("/").partition("@")
    if repo.count("/") != 1:
        raise UsageError(f"--init {init}: expected hf://user/repo or hf://user/repo@revision")
    said = read_json(get(f"api/models/{repo}/revision/{revision or 'main'}", init, settings), init)
    siblings, commit = said.get("siblings"), said.get("sha")
    listed = [one.get("rfilename") for one in siblings if isinstance(one, dict)] if isinstance(siblings, list) else []
    names = {one for one in listed if isinstance(one, str)}
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{7,64}", commit):
        raise UsageError(f"--init {init}: {hub()} did not name the commit of the model")
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise UsageError(f"--init {init}: the repository has no model with config.json and .safetensors files")
    model = model_config(read_json(get(f"{repo}/resolve/{commit}/config.json", init, settings), init))
    file, has_pieces = file_of_tokenizer(init, names), False

    def text_of(name: str) -> str:
        return get(f"{repo}/resolve/{commit}/{name}", init, settings)

    def json_of(name: str) -> dict[str, Any]:
        return read_json(text_of(name), init) if name in names else {}

    own_chat = False
    if file:
        config = json_of(TOKENIZER_CONFIG)
        paths = tokenizer_files.template_paths(names)
        templates = {name: text_of(path) for name, path in paths.items()} or templates_in(config)
        own_chat = is_foreign(default_template(templates))
        raw = content_of(f"{repo}/resolve/{commit}/{file}", init, settings)
        has_pieces = checked_tokenizer(init, file, raw, own_chat)
        json_of(vocabulary.GENERATION)
        named = tokenizer_files.named_in(config, lambda: json_of(vocabulary.NAMED))
    if own_chat:
        refuse_templates(init, templates, named, file, raw)
        refuse_ids(init, file, raw, config, json_of(vocabulary.ADDED))
    return ImportSpec(
        source=f"hf://{repo}",
        revision=commit,
        model=model,
        has_tokenizer=bool(file),
        own_chat=own_chat,
        has_pieces=has_pieces,
    )


def get(path: str, init: str, settings: Settings) -> str:
    """Return the response of the hub at `path` as text. Raise UsageError or AuthError."""
    return content_of(path, init, settings).decode(errors="replace")


def content_of(path: str, init: str, settings: Settings) -> bytes:
    """Return the response of the hub at `path` as bytes. Raise UsageError or AuthError.

    init: the typed value, for error messages.
    """
    import httpx

    token = settings.huggingfacehub_api_token or settings.hf_token
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.stream("GET", f"{hub()}/{path}", headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as reply:
            body = bytearray()
            for piece in reply.iter_bytes():
                body += piece
                if len(body) > MOST_BYTES:
                    raise UsageError(f"--init {init}: {hub()}/{path}: the answer is longer than {MOST_BYTES >> 20} MiB")
    except httpx.HTTPError as error:
        raise UsageError(f"--init {init}: {hub()} cannot be reached: {error}") from None
    if reply.status_code in (401, 403):
        raise AuthError(
            f"--init {init}: {hub()} refuses access ({reply.status_code}); set HF_TOKEN to a token with read access"
        )
    if reply.status_code == 404:
        raise UsageError(f"--init {init}: no such model or revision on {hub()}")
    if reply.status_code != 200:
        raise UsageError(f"--init {init}: {hub()} answered {reply.status_code}; try again")
    return bytes(body)


def read_json(text: str, init: str) -> dict[str, Any]:
    try:
        return untrusted_input.mapping(text, integer=untrusted_input.clamped)
    except untrusted_input.UnusableDocument as error:
        raise UsageError(f"--init {init}: the answer of the hub is invalid: {error}") from None
