"""The rate limit shared by processes."""

import multiprocessing

import pytest

from infra.providers.rate_limit import Pace, RateWindow

MINUTE, DAY = RateWindow(60.0, 3, 12), RateWindow(86400.0, 5, 48)


def paces(path, now, **more):
    """Return two limits on one file, as in two processes."""
    return [Pace(path, windows=(MINUTE, DAY), clock=lambda: now[0], **more) for _ in range(2)]


def test_two_processes_share_one_limit_and_wait_for_the_oldest_request(tmp_path):
    now = [1_000_000.0]
    one, other = paces(tmp_path / "pace", now)
    assert [one.wait_s(), other.wait_s(), one.wait_s()] == [0, 0, 0]
    wait_s = other.wait_s()
    assert 60 <= wait_s <= 65
    now[0] += wait_s
    assert other.wait_s() == 0


def test_any_minute_has_at_most_the_allowed_requests(tmp_path):
    now, sent = [1_000_004.9], []  # at the end of a bucket: the next requests begin 0.1 s later
    one, _ = paces(tmp_path / "pace", now)
    one.windows = (MINUTE,)
    while len(sent) < 9:
        if wait_s := one.wait_s():
            now[0] += wait_s
        else:
            sent.append(now[0])
    assert all(later - earlier > 60 for earlier, later in zip(sent, sent[MINUTE.most :], strict=False))


def test_a_long_window_delays_reads_but_never_the_end_of_a_machine(tmp_path):
    now = [1_000_000.0]
    one, other = paces(tmp_path / "pace", now)
    for _ in range(5):
        assert one.wait_s() == 0
        now[0] += 61
    assert other.wait_s() > 3600 and other.wait_s(changes=True) == 0


def test_a_clock_set_back_and_a_file_with_other_windows_delay_no_request(tmp_path):
    now = [1_000_000.0]
    one, other = paces(tmp_path / "pace", now)
    for _ in range(3):
        one.wait_s()
    now[0] -= 7_200
    assert other.wait_s() == 0
    (tmp_path / "pace").write_bytes(b"something else")
    assert other.wait_s() == 0


def test_a_limit_in_an_unwritable_folder_applies_to_one_process(tmp_path):
    (tmp_path / "file").write_text("")
    one, other = paces(tmp_path / "file" / "pace", [1_000_000.0])
    assert [one.wait_s() for _ in range(3)] == [0, 0, 0] and one.wait_s() > 0
    assert other.wait_s() == 0


def _ask(path, asked):
    pace = Pace(path, windows=(RateWindow(60.0, 50, 12),), clock=lambda: 1_000_000.0)
    asked.put(sum(pace.wait_s() == 0 for _ in range(40)))


@pytest.mark.process
def test_concurrent_processes_stay_within_the_limit_together(tmp_path):
    context = multiprocessing.get_context("spawn")
    asked = context.Queue()
    processes = [context.Process(target=_ask, args=(tmp_path / "pace", asked)) for _ in range(3)]
    for process in processes:
        process.start()
    counts = [asked.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert sum(counts) == 50
