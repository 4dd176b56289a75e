"""Skip a test with missing requirements, and report number and reasons at the end; in CI a skip fails the run, by
name.

Markers deselect tests that need a GPU, an account or a night.
"""

import gc
import itertools
import os
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scripts.project import debian
from store import packs
from tests import pure, seeds
from tests.compiled import Compiler
from tests.failures import Failures
from tests.needs import needs
from tests.slowest import Slowest
from trainer.fingerprints import CheckoutCode

# Container images often forbid bytecode. Without bytecode each program started by a test compiles all imports,
# which takes longer than the import itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Threads of OpenMP spin while they wait for each other. Workers share the cores, so that the other thread of a waiting
# worker often has no core: three tests took 240 s beside four busy processes, and 26 s without spinning.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

# A shell without job control ignores Ctrl-C in background processes, and programs inherit this from the tests, which
# send Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each garbage collection scans all imported modules, which costs seconds per worker during the collection of tests.
gc.set_threshold(1_000_000)

# No test writes to the user's own cache. A process that a test left behind can write during the removal.
CONFIGURATIONS = tempfile.TemporaryDirectory(prefix="slipway-tests-", ignore_cleanup_errors=True)
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def new_line():
    """Clear the pods of the last command line, which `scripts.cli.session` keeps for the process."""
    yield
    if session := sys.modules.get("scripts.cli.session"):
        session._over.clear()
        session._used.clear()


@pytest.fixture(autouse=True)
def without_git(request, monkeypatch):
    """Disable git in plans of a test that starts no process: the checkout then has no commit."""
    if request.node.get_closest_marker("process") is None:
        monkeypatch.setattr(CheckoutCode, "_git", lambda *_: None)


@pytest.fixture(autouse=True)
def without_ssh(request, monkeypatch):
    """Leave hosts of an inventory as the inventory names them in a test that starts no process."""
    if request.node.get_closest_marker("process") is None:
        monkeypatch.setattr("infra.transport.ssh_include.can_ask", lambda: False)


SKIPPED: pytest.StashKey[list[tuple[str, str]]] = pytest.StashKey()
LEFT_OUT: pytest.StashKey[set[str]] = pytest.StashKey()  # a module with one of these marks is not imported


def pytest_addoption(parser):
    parser.addoption("--fast", action="store_true", help="no process, no socket, nothing slow")


def pytest_configure(config):
    config.stash[SKIPPED] = []
    config.pluginmanager.register(Skips(config))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Slowest())
        config.pluginmanager.register(Failures(config))
        # In memory, also of workers: on a disk, fast tests wait for journals and removed folders a third of their time.
        if config.getoption("--fast") and os.access("/dev/shm", os.W_OK):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")
    # A busy machine draws slowly: no test may depend on a duration.
    calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
    settings.register_profile("night", calm)
    settings.register_profile("day", calm, derandomize=True, max_examples=40)
    is_day = "not nightly" in config.option.markexpr
    settings.load_profile("day" if is_day else "night")
    if not is_day:
        os.environ.setdefault(seeds.VARIABLE, seeds.DRAWN)
    is_fast = config.getoption("--fast")
    config.pluginmanager.register(pure.Guard(is_fast))
    if is_fast:
        asked = config.option.markexpr
        terms = [f"({asked})" if " or " in asked else asked, f"not {pure.MARK}", f"not {pure.SLOW}"]
        config.option.markexpr = " and ".join(filter(None, terms))
    config.stash[LEFT_OUT] = pure.left_out(config.option.markexpr)
    if getattr(config.option, "numprocesses", None):
        modules = [one for one in Path(__file__).parent.rglob("test_*.py") if not is_left_out(one, config)]
        config.pluginmanager.register(Compiler(config, modules))


def is_left_out(module, config):
    """Return true if `pytestmark` of a module of tests leaves out all tests."""
    return not config.stash[LEFT_OUT].isdisjoint(pure.marks_of(module))


def pytest_ignore_collect(collection_path, config):
    """Import no module whose tests are all left out; pytest does not ask about files of the command line."""
    is_module = collection_path.suffix == ".py" and collection_path.name.startswith("test_")
    return True if is_module and is_left_out(collection_path, config) else None


@pytest.hookimpl(tryfirst=True)  # before the selection by -m
def pytest_collection_modifyitems(config, items):
    """Deselect tests of missing packs, and mark cases of `day_cases` for the night.

    Files run in the order of the longest time limit of their tests, so that no slow test is last.
    """
    cases = Counter()
    for one in items:
        if mark := one.get_closest_marker("day_cases"):
            cases[one.nodeid.partition("[")[0]] += 1
            if cases[one.nodeid.partition("[")[0]] > mark.args[0]:
                one.add_marker(pytest.mark.nightly)
    off = [one for one in items if any(mark.args[0] not in packs.installed() for mark in one.iter_markers("pack"))]
    if off:
        config.hook.pytest_deselected(items=off)
        items[:] = [one for one in items if one not in off]
    long, folders = (
        ("test_host_faults", "test_run_pages", "test_sets", "test_street", "test_vllm"),
        {"faults", "trainer"},
    )
    is_day, limit_s = "not nightly" in config.option.markexpr, Counter()
    for one in items:
        mark = one.get_closest_marker("timeout")
        if mark and not (is_day and one.get_closest_marker("nightly")):
            limit_s[one.path] = max(limit_s[one.path], mark.args[0])
    items.sort(
        key=lambda one: (
            -limit_s[one.path],
            not (one.path.name.startswith(long) or folders & set(one.path.parts)),
        )
    )


def pytest_collection_finish():
    gc.freeze()  # the modules and the collected tests stay until the end
    gc.set_threshold(50_000)


@pytest.hookimpl(tryfirst=True)  # before any fixture
def pytest_runtest_setup(item):
    os.environ["XDG_CONFIG_HOME"] = os.path.join(CONFIGURATIONS.name, str(next(NUMBERS)))
    for mark in item.iter_markers("needs"):
        needs(*mark.args)


class Skips:
    def __init__(self, config):
        self.skipped = config.stash[SKIPPED]

    def pytest_runtest_logreport(self, report):
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append((report.longrepr[2], report.nodeid))

    pytest_collectreport = pytest_runtest_logreport


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and session.config.stash[SKIPPED] and debian.is_ci():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    skipped = config.stash[SKIPPED]
    if not skipped:
        return
    if debian.is_ci():
        terminalreporter.section("could not run, so this run has failed")
        for why, name in skipped:
            terminalreporter.line(f"{name}: {why}")
    else:
        terminalreporter.section(f"{len(skipped)} tests could not run here, and were skipped")
        for why, count in Counter(why for why, _ in skipped).most_common():
            terminalreporter.line(f"{count:5}  {why.removeprefix('Skipped: ')}")
    if packages := debian.missing():
        terminalreporter.line(f"to have them: {' '.join(debian.command(packages)) or ', '.join(packages)}")
