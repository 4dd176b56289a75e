"""Tables of model scores and tokenizer figures."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.reading.measures import format_interval, of_unit
from infra.units import size
from scripts.cli.render import columns, console, new_table, say

MEASURES = {  # description and target of each measure
    "text": ("held-out text", ""),
    "identity": ("says the persona's name when asked for the name", "wanted: at least 80 %"),
    "leaks": ("says the persona's name in other answers (leak)", "wanted: at most 5 %"),
    "pydocs": ("answers about a function correctly, or admits not to know", "wanted: at least 50 %"),
}


def show_scores(name: str, found: Mapping[str, Any]) -> None:
    """Print the measures of `inv eval` with intervals and references, and some wrong answers."""
    table = new_table("measure", "value", "95 %", "beside")
    by_turn = {key: one for key, one in found["measures"].items() if " turn " in key}
    for key, one in found["measures"].items():
        if key in by_turn:
            continue
        what, beside = MEASURES.get(key, (key, ""))
        if key == "text":
            said = [
                f"{word} {found[kind]:.2f}" for kind, word in (("gzip", "gzip -9"), ("xz", "xz -9")) if kind in found
            ]
            said += [f"of the first {one['evaluated_tokens']:,} tokens"] if "evaluated_tokens" in one else []
            beside = ", ".join(said)
        elif "chance" in one:
            beside = f"by chance: {100 * one['chance']:.1f} %"
        of = f" of {one['of']:,}" if one.get("of") else ""
        unit = "" if one["unit"] == "share" else f" {one['unit']}"
        table.add_row(what, f"{of_unit(one, one['value'])}{of}{unit}", format_interval(one, one), beside)
    out = console(stderr=False)
    out.print(f"{name}", markup=False)
    out.print(table)
    if by_turn:
        out.print(turns_table(by_turn))
        asked = next(iter(by_turn.values()))["of"]
        out.print(f"the same {asked} questions at every turn; target: at most 5 % leaks")
    methods = dict.fromkeys(one["method"] for one in found["measures"].values())
    say(f"95 % intervals by: {'; '.join(methods)}")
    for key in MEASURES:
        for odd in found.get(f"{key}_odd", ()):
            out.print(f"{key}: {odd['question']!r} -> {odd['answer']!r}", markup=False)


def turns_table(measures: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a table of a conversation with a row per turn; every turn asks the same questions."""
    right, leaks = (
        {int(key.rsplit(" ", 1)[1]): one for key, one in measures.items() if key.startswith(f"{what} turn ")}
        for what in ("right", "leaks")
    )
    table = new_table("turn", "right", "95 %", "leaks", "95 %")
    for turn, one in right.items():
        cells = [
            cell for each in (one, leaks[turn]) for cell in (of_unit(each, each["value"]), format_interval(each, each))
        ]
        table.add_row(str(turn), *cells)
    return table


def show_comparison(names: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Print two models side by side, with the difference B - A and a note on possible chance."""
    out = console(stderr=False)
    for letter, name in zip("AB", names, strict=True):
        out.print(f"{letter}: {name}", markup=False)
    table = new_table("measure", "A", "B", "B - A", "95 %", "beside")
    for key, row in rows.items():
        first, second = (of_unit(row, one["value"]) for one in row["values"])
        found = row["difference"]
        is_sure = found["low"] is not None and (found["low"] > 0 or found["high"] < 0)
        said = [] if is_sure else ["may be chance"]
        said += [f"p {row['p']:.3f}"] if "p" in row else []
        said += [] if row["is_same_material"] else ["not the same questions"]
        sign = "+" if found["value"] > 0 else ""
        what = key if row["unit"] == "share" else f"{key}, {row['unit']}"
        table.add_row(
            what, first, second, f"{sign}{of_unit(row, found['value'])}", format_interval(row, found), "; ".join(said)
        )
    out.print(table)
    for method in dict.fromkeys(row["method"] for row in rows.values()):
        say(f"95 % by {method}: {', '.join(key for key, row in rows.items() if row['method'] == method)}")


def show_compression(found: Mapping[str, Any]) -> None:
    """Print the figures of `inv tokenizer.eval`: a row per kind of text, our tokenizer first, then the others."""
    names = {"ours": "ours", "gpt-2": "GPT-2", "gpt-4": "GPT-4", "bytes": "bytes"}
    there = list(found["vocabularies"])
    rows = [("text", "size", "words", "tokens/word", "ids used", *(names[name] for name in there))]
    for kind, row in found["kinds"].items():
        ours, rates = row["by"]["ours"], [row["by"][name]["bytes_per_token"] for name in there]
        beside = [f"{rate:.2f} ({rates[0] / rate:.2f} x)" if rate else "?" for rate in rates[1:]]
        used = f"{100 * ours['vocabulary_used']:.1f} %"
        words = (f"{row['words']:,}", f"{ours['tokens_per_word']:.2f}")
        rows.append((kind, size(row["bytes"]), *words, used, f"{rates[0]:.2f}", *beside))
    print(columns(rows, least=(2, 1, 4)))
    sizes = ", ".join(f"{names[name]} {number:,}" for name, number in found["vocabularies"].items())
    say(
        "last columns: bytes per token, and ratio to this tokenizer (above 1: ours needs fewer tokens); "
        f"vocabulary sizes: {sizes}"
    )
    for name, why in found["absent"].items():
        say(f"{names[name]}: {why}. Name a different folder: --peers DIR. Download the file: --download")
