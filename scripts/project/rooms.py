"""Places of contributions: for each kind of change a folder, a template file, and the files that register the change.

CONTRIBUTING.md and AGENTS.md show the same table. A test checks the existence of every named file.
"""

import re
from dataclasses import dataclass

BEGIN, END = "<!-- Generated from scripts/project/rooms.py -->", "<!-- End of the generated table -->"
HEADS = ("to add", "folder", "copy from", "then")


@dataclass(frozen=True)
class ContributionRow:
    """Place of a kind of change. Paths are relative to the checkout; `then` may name files in backquotes."""

    what: str
    folder: str
    copy: str
    then: str

    def paths(self) -> tuple[str, ...]:
        """Return all files and folders named in the row."""
        return (self.folder, self.copy, *(one for one in re.findall(r"`([^`]+)`", self.then) if "/" in one))


ROOMS = (
    ContributionRow(
        "a vendor",
        "infra/providers",
        "infra/providers/shadeform.py",
        "key and address in `infra/settings.py` (`VENDORS` and `Settings`), class in `infra/providers/by_name.py`, "
        "billing unit in `infra/ledger/spend.py`, the unit of the vendor's timer, if any, in "
        "`infra/providers/__init__.py`, names of GPUs in `infra/market/gpus.py`, prices in "
        "`infra/market/catalogue.json`, name and dashboard in "
        "`flows/installation/first_keys.py` and `flows/installation/doctor.py`, a rehearsed server in "
        "`infra/rehearsal/vendors/`, named in `infra/rehearsal/world.py`, `infra/rehearsal/records.py`, "
        "`infra/rehearsal/faults.py` and `infra/rehearsal/offers.json`, a column in `docs/money.md`, the vendor's API "
        "document in "
        "`tests/vendors/`, tests as in `tests/infra/market/test_shadeform.py` and the rigs of "
        "`tests/faults/rented.py`. "
        "`tests/infra/providers/test_vendor_tables.py` names a missing entry, except names of GPUs; "
        "`git grep -il shadeform -- . ':!dev' ':!CHANGELOG.md'` lists the help texts, pages and tests that list all "
        "vendors. A vendor is never a pack: the ledger applies no spend limit to the pods of a pack. A vendor for "
        "yourself alone is one file, as in `examples/own/lab.py`",
    ),
    ContributionRow(
        "a phase of training",
        "packs/blocks",
        "packs/blocks/pack.py",
        "an optional phase is a pack: the record in `packs/blocks/records/phases.py`, the settings of each profile in "
        "`packs/blocks/records/recipes.py`, the training in `packs/blocks/trainer/phase.py` and "
        "`packs/blocks/trainer/objective.py`, the flags of `launch`, `rehearse`, `train` and `pod.run` in "
        "`packs/blocks/control/sizes.py`, a README, tests in `tests/packs/blocks`, a curve in "
        "`tests/trainer/curves.py`, recorded by `python -m tests.trainer.curves write` and `python -m tests.golden "
        "write`. The smallest pack with a phase is `examples/own/desk`; a phase without flags fits in one file, "
        "`examples/own/smooth.py`. A phase of the core, which no pack can remove, is a file of `trainer/phases/`, "
        "with a record in `trainer/records/phase_registry.py` and settings in "
        "`trainer/recipes.py` and `trainer/profiles/derived_phases.py`. A new kind of data is a specification in "
        "`data/config.py`, a step in `data/__main__.py` and a node in `trainer/plan/nodes.py`",
    ),
    ContributionRow(
        "a flag for machines",
        "infra/selection",
        "infra/selection/machine_spec.py",
        "declared and turned into a field of `Request` (`infra/records.py`) in `infra/selection/machine_spec.py`; a "
        "filter of offers in `infra/market/filters.py`, and the filtered value in `Offer` and in each of "
        "`infra/providers/`; the field in `flows/runs/same_request.py` (`OF_REQUEST`), so that a second launch with a "
        "different value is refused while the run works. A limit is a field of `LimitSpec` in the same file, and in "
        "`OF_LIMITS`. Files of users name the flag on their own: pod files in `infra/runs/keepers/pod_set.py`, sweeps "
        "in `packs/sweeps/control/experiment.py`, job files in `packs/jobs/control/job_file.py`, services in "
        "`serve/service.py`",
    ),
    ContributionRow(
        "any other flag",
        "flows/specs",
        "flows/specs/work.py",
        "`flows/specs/work.py` for training, `flows/specs/launch.py` for a launch (compared with the run at work if "
        "listed in `flows/runs/same_request.py`, `AS_TYPED`; a key of sweeps unless listed in "
        "`packs/sweeps/control/experiment.py`, `NOT_OF_A_TRIAL`), `scripts/cli/flags.py` for output; a flag of an "
        "optional feature is a record of the pack, such as `packs/deadline/control/flags.py`, named for each command "
        "in `packs/deadline/pack.py`; a flag of a single command is a field of the record in the file of the command, "
        "such as "
        "`scripts/runs/logs.py`",
    ),
    ContributionRow(
        "a command",
        "scripts",
        "scripts/market/audit.py",
        "a file with the record of flags, the help and the function; name, function and first line of "
        "help in `scripts/commands.py`; the work as a use case like `flows/pods/accounts.py`; a mention "
        "in a page of `docs/guides/`",
    ),
    ContributionRow(
        "a setting",
        "infra",
        "infra/settings.py",
        "a field of `Settings`; a test in `tests/infra/test_settings.py`",
    ),
    ContributionRow(
        "a reward of rl",
        "trainer/rewards",
        "trainer/rewards/math_answers.py",
        "task in `data/config.py` (`TASKS`) and in `trainer/rewards/task_rewards.py`, tests as in "
        "`tests/trainer/rewards/test_judges.py`",
    ),
    ContributionRow(
        "a page of docs",
        "docs/guides",
        "docs/guides/on.md",
        "a link in `README.md`; a question with the answer in `tests/docs/questions.yaml`, and the words of readers "
        "in `scripts/project/docs.py` (`SYNONYMS`); `tests/docs/` checks links and commands, and runs the commands "
        "every night",
    ),
    ContributionRow(
        "a test",
        "tests",
        "tests/infra/test_numbers.py",
        "the folder of the tested module, below `tests/`; `pytest.mark.process` for a test that starts a "
        "process, `pytest.mark.nightly` for a test that takes minutes",
    ),
)


def rows() -> list[tuple[str, str, str, str]]:
    """Return the table rows, with links relative to the root of the checkout."""
    return [(one.what, f"[{one.folder}/]({one.folder}/)", f"[{one.copy}]({one.copy})", one.then) for one in ROOMS]


def filled(page: str, table: str) -> str:
    """Replace the text between the two markers with the table. Raises ValueError for a missing marker."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table}\n{END}{after}"
