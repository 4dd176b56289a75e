"""Name a failing test at once: a run of half an hour otherwise reports failures at the end."""

import pytest


class Failures:
    """A plugin that prints the name of each failing test, of all workers, among the dots."""

    def __init__(self, config: pytest.Config) -> None:
        self.plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self.plugins.get_plugin("terminalreporter")  # does not exist yet when the run is configured
        if report.failed and terminal is not None:
            terminal.line("")
            terminal.line(f"failed in its {report.when}: {report.nodeid}", red=True)
