"""Reports of other people's machines, clients, conversations and files, with the tests of each.

    python -m tests.reports [NUMBER ...] [--nightly]

Runs the tests of each report and prints a table: what happened before, and what the tests say now. A report stands for
a class of inputs; each of the tests holds the reported input and at least two variants.
"""

import argparse
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as tree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Report:
    title: str
    before: str
    tests: tuple[str, ...]
    """Files or tests below `tests`; a name after `::` selects by its beginning."""


REPORTS = {
    "01": Report(
        "a remote shell that prints a greeting",
        "every launch failed; a printed number was taken for a process group",
        ("infra/transport/test_login_shells.py", "end_to_end/test_street_users.py"),
    ),
    "03": Report(
        "one unusable entry of an inventory",
        "status, logs and down of all machines ended with exit code 2",
        ("end_to_end/test_street_entries.py::test_unusable_entries", "infra/machines/test_inventory.py"),
    ),
    "05": Report(
        "a client's requests that an engine answers with 500",
        "five of them took the replica out of service; other clients got 503",
        ("end_to_end/test_bad_clients.py", "serve/policy/test_replica_states.py"),
    ),
    "07": Report(
        "a machine that is no longer in the inventory",
        "no run could start, on any provider",
        ("end_to_end/test_street_entries.py::test_machine_removed",),
    ),
    "09": Report(
        "the endpoint of a store in .env",
        "the bucket was asked at AWS, with the keys",
        ("infra/test_settings.py::test_addresses_of_stores", "infra/test_settings.py::test_dotenv_keeps"),
    ),
    "11": Report(
        "tcsh as the login shell",
        "`its tools cannot be listed: Unmatched`",
        ("infra/transport/test_login_shells.py",),
    ),
    "13": Report(
        "a working folder with a submodule",
        "its files were missing on the rented machine",
        ("infra/transport/test_push.py::test_files_of_submodules",),
    ),
    "15": Report(
        "a key with a passphrase in ssh-agent",
        "`the key was refused`, and advice that cannot help",
        ("infra/transport/test_ssh_ways.py",),
    ),
    "17": Report(
        "a tracking server that does not answer",
        "a rented machine waited for 60 s, and one line of a log said why",
        ("infra/agent/execution/test_sidecars.py::test_a_silent_tracker", "packs/trackers/test_libraries.py"),
    ),
    "t-01": Report(
        "conversations from which nothing is learnt",
        "12 steps at loss 0.000, published, exit code 0",
        ("trainer/test_nothing_learnt.py",),
    ),
    "t-03": Report(
        "a GGUF file without the chat template",
        "llama.cpp asked in ChatML",
        ("packs/bits/test_llama_cpp.py",),
    ),
    "t-05": Report(
        "tokenizer files as every version of transformers writes them",
        "a length without a limit made the template unreadable",
        ("trainer/model/test_foreign_files.py",),
    ),
    "t-07": Report(
        "right programs that return a Counter, a Fraction or a namedtuple",
        "reward 0",
        ("trainer/rewards/test_variants.py::test_program_is_right", "trainer/rewards/test_variants.py::test_setup"),
    ),
    "t-09": Report(
        "an answer key that is a label and a text",
        "the wrong choice was right",
        ("trainer/evaluation/test_question_files.py",),
    ),
    "t-11": Report(
        "numbers in bold, with units, currencies and separators",
        "right answers scored 0, wrong ones 1",
        (
            "trainer/rewards/test_variants.py::test_number_is_right",
            "trainer/rewards/test_variants.py::test_latex",
            "trainer/rewards/test_variants.py::test_drawn_latex",
        ),
    ),
    "t-13": Report(
        "U+2028, U+0085 and a byte order mark in a question file",
        "valid lines were refused",
        ("trainer/evaluation/test_question_files.py::test_line_of_json", "data/test_problems.py"),
    ),
    "t-15": Report(
        "a byte order mark in a text file",
        "a character of the first document",
        ("data/text/test_formats.py::test_marks_and_line_ends",),
    ),
    "t-17": Report(
        "a file whose text column holds nothing but nulls",
        "the run ended with exit code 2; NA vanished uncounted",
        ("data/text/test_formats.py::test_null_texts", "data/chat/test_imported.py::test_null_and_odd_rows"),
    ),
}


def outcomes(tests: Sequence[str], is_nightly: bool) -> tuple[int, int]:
    """Run tests; return the numbers of passed and of failed tests."""
    files = sorted({one.partition("::")[0] for one in tests})
    names = " or ".join(one.partition("::")[2] or Path(one).stem for one in tests)
    marks = "not gpu and not account" + ("" if is_nightly else " and not nightly")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.xml")
        words = ["-m", "pytest", "-q", "-m", marks, "-k", names, f"--junit-xml={result}"]
        paths = [str(ROOT / "tests" / one) for one in files]
        subprocess.run([sys.executable, *words, *paths], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        (suite,) = tree.parse(result).getroot().iter("testsuite")
    total, failed = int(suite.attrib["tests"]), int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    return total - failed - int(suite.attrib["skipped"]), failed


def main(words: Sequence[str]) -> int:
    known = argparse.ArgumentParser(prog="python -m tests.reports", description=(__doc__ or "").splitlines()[0])
    known.add_argument("numbers", nargs="*", metavar="NUMBER", help=f"of {', '.join(REPORTS)} (default: all)")
    known.add_argument("--nightly", action="store_true", help="include the nightly tests")
    flags = known.parse_args(words)
    print("| report | before | tests now |\n|---|---|---|", flush=True)
    is_broken = False
    for number in flags.numbers or REPORTS:
        one = REPORTS[number]
        passed, failed = outcomes(one.tests, flags.nightly)
        is_broken |= bool(failed) or flags.nightly and not passed
        said = f"{passed} passed" + (f", **{failed} failed**" if failed else "")
        said = said if passed or failed else "**none ran**" if flags.nightly else "only with --nightly"
        print(f"| {number} {one.title} | {one.before} | {said} |", flush=True)
    return int(is_broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
