"""The recording of a drill: every request and answer, and what our client made of them, without keys and addresses.

In: the exchanges of a `Watch` and the evidence. Out: one JSON file, which `flows.drills.replay` reads.
Of answers that list many things, only rows about the machines of the drill and about their kind are kept.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from infra.agent.job import write_durably
from infra.drill.evidence import Evidence
from infra.drill.masking import STRUCK, RecordingMask
from infra.drill.watch import HeardExchange
from infra.errors import SlipwayError, UsageError
from infra.records import Offer, Pod

SCHEMA = 1
TEMPLATE = "daturaai/pytorch"  # the image for which Lium's client looks for a template


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One request and its answer. `verb`: the number of the verb in the evidence that it belongs to."""

    verb: int
    method: str
    path: str  # with what follows the `?`
    request: Any
    status: int
    answer: Any  # JSON, or a text; None: no body
    at: float  # by the vendor's clock, as the answer's header has it; 0 = it has none
    is_lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The answers of a vendor in one drill."""

    vendor: str
    at: int
    evidence: Evidence
    exchanges: tuple[Recorded, ...]
    schema: int = SCHEMA


def record(seen: Evidence, heard: Sequence[HeardExchange], at: int) -> tuple[Recording, RecordingMask]:
    """Return the recording, and the mask that was put on it."""
    tokens = list(dict.fromkeys(one.word for one in seen.of("create")))
    ids = [pod.pod_id for one in seen.asked for pod in one.pods]
    mask = RecordingMask(tokens, list(dict.fromkeys(ids)))
    bodies = [(_json(one.exchange.content), one.exchange.reply.content if one.exchange.reply.body else None)
              for one in heard]  # fmt: skip
    kinds = {one.offer.instance_type for one in seen.trials if one.offer.instance_type}
    ours = (*tokens, *filter(None, ids), *kinds, TEMPLATE)
    bodies = [(asked, _about(answer, ours)) for asked, answer in bodies]
    for asked, answer in bodies:
        mask.learn(asked)
        mask.learn(answer)
    exchanges = tuple(
        Recorded(verb=one.verb, method=one.exchange.method, path=_path(one.exchange.path, mask), is_lost=one.is_lost,
                 request=mask.body(asked), status=one.exchange.reply.status, answer=mask.body(answer),
                 at=_date(one.exchange.reply.headers))
        for one, (asked, answer) in zip(heard, bodies, strict=True)
    )  # fmt: skip
    return Recording(vendor=seen.vendor.name, at=at, evidence=_masked(seen, mask), exchanges=exchanges), mask


def save(recording: Recording, path: Path, secrets: Iterable[str]) -> None:
    """Write a recording down. Raises SlipwayError, and writes nothing, when one of the secrets stands in it."""
    text = json.dumps(asdict(recording), indent=1) + "\n"
    if any(one and one in text for one in secrets):
        raise SlipwayError("the recording is not written: not everything in it could be masked")
    write_durably(path, text, 0o600)


def load(path: Path) -> Recording:
    """Return the recording in a file. Raises UsageError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Recording)
    except (OSError, ValueError) as error:
        raise UsageError(f"--replay {path}: {error}") from None
    if found.schema != SCHEMA:
        raise UsageError(f"--replay {path}: a recording of schema {found.schema}; this Slipway reads {SCHEMA}")
    return found


def _about(answer: Any, ours: Sequence[str]) -> Any:
    """Return an answer whose lists hold only rows about `ours`: other machines of the account are nobody's business."""
    if isinstance(answer, list):
        return [one for one in answer if any(word in json.dumps(one) for word in ours)]
    if isinstance(answer, dict):
        rows = {name: _about(value, ours) for name, value in answer.items()
                if isinstance(value, list) and value and isinstance(value[0], dict) and name != "errors"}  # fmt: skip
        return {**answer, **rows} if "id" not in answer else answer
    return answer


def _masked(seen: Evidence, mask: RecordingMask) -> Evidence:
    """Return evidence with the same stand-ins."""

    def pod_of(pod: Pod) -> Pod:
        name = mask.body(pod.name) if pod.name else ""
        return replace(pod, pod_id=mask.stand_in(pod.pod_id), token=mask.stand_in(pod.token), name=name, address="",
                       note=mask.words(pod.note), odd=mask.words(pod.odd))  # fmt: skip

    def offer_of(offer: Offer) -> Offer:
        raw = json.dumps(mask.body(json.loads(offer.raw))) if offer.raw else ""
        return replace(offer, offer_id=mask.stand_in(offer.offer_id), raw=raw)

    asked = tuple(
        replace(one, word=mask.stand_in(one.word), pods=tuple(map(pod_of, one.pods)),
                error=one.error.partition(":")[0])
        for one in seen.asked
    )  # fmt: skip
    trials = tuple(
        replace(one, token=mask.stand_in(one.token), pod_id=mask.stand_in(one.pod_id), offer=offer_of(one.offer),
                failure=mask.words(one.failure))
        for one in seen.trials
    )  # fmt: skip
    ground = {name: value and mask.words(value) for name, value in asdict(seen.ground).items()}
    return replace(seen, asked=asked, trials=trials, ground=replace(seen.ground, **ground))


def _path(path: str, mask: RecordingMask) -> str:
    base, mark, query = path.partition("?")
    pairs = [(name, mask.stand_in(value)) for name, value in parse_qsl(query, keep_blank_values=True)]
    return mask.stand_in(base) + mark + urlencode(pairs)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content) if content else None
    except ValueError:
        return STRUCK


def _date(headers: Mapping[str, str]) -> float:
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return 0.0
