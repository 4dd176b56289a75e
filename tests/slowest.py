"""Report the test files with the longest total time, at the end of a run."""

from collections import Counter

import pytest

SHOWN = 10


class Slowest:
    """A plugin that adds up the times of all tests by file, of all workers, and prints the slowest files at the end."""

    def __init__(self) -> None:
        self.spent_s: Counter[str] = Counter()  # by file; a fixture counts for the first file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent_s[report.location[0]] += report.duration  # type: ignore[assignment] # seconds are no whole numbers

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if len(self.spent_s) <= SHOWN:
            return
        terminalreporter.section(f"the {SHOWN} slowest of {len(self.spent_s)} files")
        for name, spent_s in self.spent_s.most_common(SHOWN):
            terminalreporter.line(f"{spent_s:6.0f} s  {name}")
        terminalreporter.line(f"{sum(self.spent_s.values()):6.0f} s  all, added up over the workers")
