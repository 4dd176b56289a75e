"""A test that cannot run fails the run, by name. What needs a GPU, an account or a night is deselected by marker."""

import pytest

SKIPPED: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser):
    parser.addoption("--seed", default="", help="of crash trials and races; another one each time without")


def pytest_configure(config):
    config.stash[SKIPPED] = []
    config.pluginmanager.register(Skips(config))


def pytest_collection_modifyitems(items):
    """What takes minutes first: of two processes, neither is to be left alone with a long file."""
    long = ("test_street", "test_vllm_service")
    items.sort(key=lambda one: not (one.path.name.startswith(long) or one.path.parent.name == "faults"))


class Skips:
    def __init__(self, config):
        self.names = config.stash[SKIPPED]

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.names.append(f"{report.nodeid}: {report.longrepr[2]}")

    def pytest_collectreport(self, report):
        if report.skipped:
            self.names.append(f"{report.nodeid}: {report.longrepr[2]}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and session.config.stash[SKIPPED]:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    names = config.stash[SKIPPED]
    if names:
        terminalreporter.section("could not run, so this run has failed")
        for name in names:
            terminalreporter.line(name)
