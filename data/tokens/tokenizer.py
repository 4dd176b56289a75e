"""Tokenizer: convert text to ids and back with the BPE of a folder in the format of `transformers` and vLLM.

The folder comes from `bpe.py`, from an export, or from a published model. Slipway's own tokenizers split text with
GPT-4's pattern, group at most two digits, and reserve the last nine ids for the special tokens. Source: nanochat (its
tokenizer and chat format). A published model keeps its own chat template and stop tokens. Slipway's tokenizers and most
others work on bytes. SentencePiece tokenizers work on characters and encode the start of a document differently from
continued text (`piece_encoder`).

Ids equal the ids of Hugging Face's `tokenizers`, verified by tests; `fastokens` computes them from the same file about
twelve times as fast (bench/RESULTS.md). A file with components of unknown cost is untrusted and runs, more slowly, in a
child process with limits.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.config import ENDS_ANSWER, SPECIALS
from data.errors import DataError, InputError
from data.tokens.chat_template import NAMES, ChatTemplate
from data.tokens.piece_encoder import PieceEncoder, decoder_behind, widths
from data.tokens.untrusted import limited_tokenizer
from data.tokens.untrusted.component_check import find_unknown_component
from data.tokens.untrusted.patterns import PATTERN as PATTERN
from store import untrusted_input
from store.artifacts import sentencepiece, vocabulary
from store.artifacts.tokenizer_files import TOKENIZER_CONFIG, load_if_present, named_tokens, templates_of

if TYPE_CHECKING:
    import fastokens
    import numpy as np

    from data.tokens.untrusted.limited_tokenizer import LimitedTokenizer

BOS, END = "<|bos|>", ENDS_ANSWER
TOKENIZER_BYTES = 256 * untrusted_input.MIB
# Size in characters of a piece; encoding a longer text at once takes fifty times the text's size in memory.
PIECE = 1 << 20
CUT = re.compile("(?<=[A-Za-z]) (?=[A-Za-z])")  # PATTERN always begins a new word here, in every context


class Tokenizer:
    """Convert text to ids and back; text that looks like a special token is encoded as plain text.

    Only `special` returns the ids of special tokens.

    stops: ids that end an answer; the first is also the padding id. begin: ids before a single text. separator: id
    before each document. named: ids of `bos_token` and the other named tokens, or None. chat: the model's own chat
    template, or None for Slipway's chat format.
    """

    def __init__(self, folder: Path):
        """Open the tokenizer of a folder.

        Raises DataError without a tokenizer.json, and for a tokenizer with neither Slipway's chat tokens nor a chat
        template.
        """
        import fastokens
        import tokenizers

        path = folder / "tokenizer.json"
        try:
            raw = untrusted_input.content(path, TOKENIZER_BYTES)
            self.sha256 = hashlib.sha256(raw).hexdigest()
            self._limited = self._by_pieces = None
            raw, said = _without_batches(raw)
            if said := _of_pieces(said):
                self._by_pieces = PieceEncoder(said, sentencepiece.spaces_of(said))
                self.inner: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(json.dumps(said))
            else:
                self._limited = limited_tokenizer.of_untrusted(raw)  # opens the file in a child process first
                self.inner = tokenizers.Tokenizer.from_str(raw.decode())
                self._encoder = self._limited or fastokens.Tokenizer.from_json_str(raw.decode())
            self._said = said
        except FileNotFoundError:
            is_other = (folder / sentencepiece.FILE).is_file()
            other = f"; --init {folder} can take over {sentencepiece.FILE}" if is_other else ""
            raise DataError(f"{folder}: no tokenizer.json{other}") from None
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        # The libraries raise a bare Exception, or panic, on an unreadable file.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise DataError(f"{path}: not a tokenizer: {str(error)[:200]}") from None
        self.vocab_size = self.inner.get_vocab_size()
        if self.vocab_size < len(SPECIALS):
            raise DataError(f"{path}: the {self.vocab_size} ids are fewer than the chat tokens")
        self.chat: ChatTemplate | None = None
        last = tuple(self.inner.id_to_token(self.vocab_size - len(SPECIALS) + n) for n in range(len(SPECIALS)))
        if last == SPECIALS:
            bos, end = self.special(BOS), self.special(END)
            self.stops: tuple[int, ...] = (end, bos)
            self.begin: tuple[int, ...] = (bos,)
            self.separator = bos
            self.named: dict[str, int | None] = {"bos_token": bos, "eos_token": end, "pad_token": end}
            return
        try:
            if not (sources := templates_of(folder)):
                raise DataError(f"{path}: the last {len(SPECIALS)} ids are not the chat tokens")
            self._load_published(folder, sources)
        except untrusted_input.UnusableDocument as error:
            raise DataError(str(error)) from None

    def _load_published(self, folder: Path, sources: Mapping[str, str]) -> None:
        """Read stop tokens, named tokens and chat template of a published model.

        Raises DataError, InputError or UnusableDocument.
        """
        if max(self.inner.get_vocab().values()) >= self.vocab_size:
            raise DataError(f"{folder}: the tokenizer has {self.vocab_size} ids, but some ids are larger")
        given = (load_if_present(folder, name) for name in (TOKENIZER_CONFIG, vocabulary.ADDED))
        if wrong := vocabulary.other_ids(untrusted_input.content(folder / "tokenizer.json", TOKENIZER_BYTES), *given):
            raise DataError(f"{folder}: {wrong}")
        texts = named_tokens(folder)
        self.named = {name: self.inner.token_to_id(texts[name]) if name in texts else None for name in NAMES[:3]}
        generation = {
            **load_if_present(folder, "config.json"),
            **load_if_present(folder, "generation_config.json"),
        }
        eos = generation.get("eos_token_id", self.named["eos_token"])
        ids = [*(eos if isinstance(eos, list) else [eos]), self.named["eos_token"]]
        stops = [one for one in dict.fromkeys(ids) if type(one) is int and 0 <= one < self.vocab_size]
        added = [(one, number) for number, one in self.inner.get_added_tokens_decoder().items()]
        lead = self._by_pieces.spaces.lead if self._by_pieces is not None else sentencepiece.NOTHING
        try:
            self.chat = ChatTemplate(sources, texts, added, self.encode_batch, stops, lead)
        except DataError as error:
            raise InputError(f"{folder}: {error}") from None
        self.stops = self.chat.stops
        plain, whole = (self.reference_ids("a", special=one) for one in (False, True))
        self.begin = tuple(whole[: len(whole) - len(plain)]) if whole[len(whole) - len(plain) :] == plain else ()
        bos = self.named["bos_token"]
        self.separator = bos if bos is not None else self.stops[-1]

    @property
    def has_pieces(self) -> bool:
        """Return True for a SentencePiece tokenizer: characters with byte fallback."""
        return self._by_pieces is not None

    def encode(self, text: str | bytes, goes_on: bool = False) -> list[int]:
        return self.encode_batch([text], goes_on)[0].tolist()

    def encode_batch(self, texts: Sequence[str | bytes], goes_on: bool = False) -> list["np.ndarray"]:
        """Return the ids of each text, uint32 (tokens,); bytes that are not UTF-8 count as U+FFFD, as in text shards.

        goes_on: each text continues earlier text; only SentencePiece tokenizers encode such text differently. All
        returned arrays are views of a shared array. Raises UnicodeEncodeError for a string with an unpaired surrogate.
        """
        pieces: list[str] = []
        firsts = [0]
        for text in texts:
            pieces += self._split_text(text if isinstance(text, str) else text.decode("utf-8", "replace"))
            firsts.append(len(pieces))
        ids, ends = self._flat(pieces, firsts, goes_on)
        return [ids[ends[start] : ends[stop]] for start, stop in pairwise(firsts)]

    def encode_joined(self, texts: Sequence[str]) -> "np.ndarray":
        """Return the concatenated ids of all texts, uint32 (tokens,)."""
        pieces = [list(self._split_text(text)) for text in texts]
        firsts = [0, *accumulate(map(len, pieces))]
        return self._flat([one for some in pieces for one in some], firsts, False)[0]

    def _flat(self, pieces: list[str], firsts: Sequence[int], goes_on: bool) -> tuple["np.ndarray", list[int]]:
        """Return the concatenated ids of all pieces, and the offset of each piece.

        firsts: indices of the pieces that begin a text.
        """
        if self._by_pieces is None:
            return encode_flat(self._encoder, pieces)
        begins = frozenset() if goes_on else frozenset(firsts)
        return self._by_pieces.encode_flat(pieces, [at not in begins for at in range(len(pieces))])

    def _split_text(self, text: str) -> Iterator[str]:
        """Yield parts of `text` that, encoded separately, give the same ids as the whole text."""
        start = 0
        if self._by_pieces is None or self._by_pieces.has_borders:
            while len(text) - start > PIECE and (cut := CUT.search(text, start + PIECE)):
                yield text[start : cut.start()]
                start = cut.start()
        yield text[start:]

    def reference_ids(self, text: str, special: bool) -> list[int]:
        """Return the ids from Hugging Face's library; `special`: include the special tokens added around a text."""
        if self._limited is not None:
            return self._limited.reference_ids(text, special)
        self.inner.encode_special_tokens = not special
        return list(self.inner.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], goes_on: bool = False) -> str:
        """Return the text of `ids` with special tokens spelled out; bytes that are not UTF-8 become U+FFFD.

        goes_on: the ids continue earlier ids, so a space at the beginning belongs to the text.
        """
        if goes_on and self._by_pieces is not None:
            words = map(self.inner.id_to_token, map(int, ids))
            return decoder_behind().decode([one for one in words if one is not None])
        if self._limited is not None:
            return self._limited.decode(ids)
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def special(self, name: str) -> int:
        """Return the id of a token in SPECIALS; only for tokenizers without their own chat template."""
        assert self.chat is None, "it has stops, begin and separator"
        return self.vocab_size - len(SPECIALS) + SPECIALS.index(name)

    def token_bytes(self) -> "np.ndarray":
        """Return the number of text bytes per id, int32 (vocab_size,); 0 for the special tokens."""
        return self._token_bytes

    def bytes_behind(self, before: "np.ndarray", ids: "np.ndarray") -> "np.ndarray":
        """Return the number of text bytes of each of `ids`, int32 of equal shape; `before`: the id preceding each id.

        The space added by the tokenizer at the start of a document does not count.
        """
        found = self._token_bytes[ids]
        if self._by_pieces is None or self._by_pieces.spaces.lead == sentencepiece.NOTHING:
            return found
        return found - ((before == self.separator) & self._starts_with_space[ids])

    @cached_property
    def _token_bytes(self) -> "np.ndarray":
        import numpy as np

        # Each character of a byte-level token stands for exactly one byte.
        words = self.inner.get_vocab(with_added_tokens=False).items() if not self._said else ()
        found = widths(self._said) if self._said else {number: len(word) for word, number in words}
        return np.array([found.get(number, 0) for number in range(self.vocab_size)], dtype=np.int32)

    @cached_property
    def _starts_with_space(self) -> "np.ndarray":
        """Return a flag per id: True if the token begins with a space, bool (vocab_size,)."""
        import numpy as np

        words = self._said["model"]["vocab"].items()
        spaced = {number for word, number in words if word.startswith(sentencepiece.SPACE)}
        return np.array([number in spaced for number in range(self.vocab_size)])


def load(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder written by `bpe.save` or an export. Raises DataError."""
    return Tokenizer(Path(folder))


def encode_flat(encoder: "fastokens.Tokenizer | LimitedTokenizer", texts: list[str]) -> tuple["np.ndarray", list[int]]:
    """Return the concatenated ids of all texts, uint32 (tokens,), and the text offsets including the end."""
    import numpy as np

    ids, ends = encoder.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
    return np.frombuffer(ids, np.uint32), np.frombuffer(ends, np.uint64).tolist()


def _without_batches(raw: bytes) -> tuple[bytes, Any]:
    """Return a tokenizer.json as bytes and as a value, without the lengths that its author set for batches.

    `transformers` ignores these lengths as well, but the libraries cut and pad every text. Raises ValueError.
    """
    said = json.loads(raw)
    if not isinstance(said, dict) or not (said.get("truncation") or said.get("padding")):
        return raw, said
    said |= {"padding": None, "truncation": None}
    return json.dumps(said, ensure_ascii=False).encode(), said


def _of_pieces(said: Any) -> dict[str, Any]:
    """Return the content of a tokenizer.json of a SentencePiece tokenizer, else {}. Raises InputError or ValueError."""
    if not isinstance(said, dict) or not sentencepiece.is_pieces(said):
        return {}
    if odd := find_unknown_component(said):
        raise InputError(f"{odd} is not supported in a tokenizer with byte fallback")
    return said
