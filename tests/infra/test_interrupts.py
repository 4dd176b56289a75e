"""Signals with and without a wait for the end of a block."""

import contextlib
import os
import signal
import threading

import pytest

from infra.errors import NoOffer
from infra.interrupts import ExitRequested, defer_interrupts, raise_on_signals

pytestmark = pytest.mark.process


def strike(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "what"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, ExitRequested), (signal.SIGHUP, ExitRequested)],
)
def test_the_first_signal_waits_for_the_end_of_the_block(number, what):
    done, said = [], []
    with raise_on_signals(), pytest.raises(what) as caught, defer_interrupts("asked", said.append):
        strike(number)
        done.append("the rest")
    assert done == ["the rest"] and len(said) == 1 and "asked" in said[0]
    if what is ExitRequested:
        assert caught.value.exit_code == 128 + number


def test_the_second_signal_does_not_wait():
    with pytest.raises(KeyboardInterrupt), defer_interrupts("asked", lambda _: None):
        strike()
        strike()
        pytest.fail("it waited")


def test_a_signal_still_counts_after_a_failure_of_the_block():
    with pytest.raises(KeyboardInterrupt), defer_interrupts("asked", lambda _: None):
        strike()
        raise NoOffer("the next one may do")


def test_a_second_signal_with_a_lost_exception_is_raised_at_the_end():
    with pytest.raises(KeyboardInterrupt), defer_interrupts("asked", lambda _: None):
        strike()
        with contextlib.suppress(KeyboardInterrupt):  # as a callback of SQLite does
            strike()


def test_ignored_signals_stay_ignored_and_handlers_are_restored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with raise_on_signals(), defer_interrupts("asked", lambda _: None):
            strike(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_other_threads_are_unaffected():
    done = []

    def work():
        with raise_on_signals(), defer_interrupts("asked", lambda _: None):
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]


def test_a_closed_output_does_not_end_the_block_early():
    done = []

    def closed(_):
        raise BrokenPipeError

    with pytest.raises(KeyboardInterrupt), defer_interrupts("asked", closed):
        strike()
        done.append("the rest")
    assert done
