"""The files with the times of runs."""

import json
import os
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.ledger.timings import RunTimes, Timings
from infra.market.step_times import StepTime
from infra.records import Expected, StepWork
from tests import seeds

WORK = StepWork(step="base", kind="base v1", machine="2 x CPU", shape="a", size=4e6, amount=1e12, guess_s=20.0)
TIME = StepTime(work=WORK, at=1e9, began_s=1.5, seconds=20.0, marks=((4.0, 0.1), (18.0, 1.0)), others=0.02)
EXPECTED = Expected(step="base", seconds=20.0, low=15.0, high=30.0, fixed_s=4.0, source="a guess")
RUN = RunTimes(token="sw1-a", run="calm-ox-1", vendor="runpod", asked_at=1e9, works=(WORK,), expected=(EXPECTED,),
               micro_usd=(1, 2, 3), state="succeeded", wall_s=30.0, times=(TIME,))  # fmt: skip


@pytest.fixture
def timings(tmp_path):
    return Timings.for_journal(tmp_path / "journal.sqlite")


def test_a_kept_record_is_read_unchanged(timings):
    assert timings.all() == [] and list(timings.problems()) == []
    timings.save(RUN)
    assert timings.get("sw1-a") == RUN
    assert timings.step_times() == [TIME]
    assert timings._path("sw1-a").stat().st_mode & 0o777 == 0o600


def test_a_damaged_record_is_skipped_and_named(timings):
    timings.save(RUN)
    whole = timings._path("sw1-a").read_text()
    damaged = {
        "cut": whole[:200],
        "other": whole,
        "seconds": whole.replace('"seconds": 20.0', '"seconds": -20.0'),
        "word": whole.replace('"seconds": 20.0', '"seconds": "20"'),
        "range": whole.replace('"high": 30.0', '"high": 3.0'),
        "newer": whole.replace('"schema": 1', '"schema": 2'),
    }
    for name, text in damaged.items():
        timings._path(name).write_text(text if name == "other" else text.replace("sw1-a", name))
    assert timings.all() == [RUN]
    assert timings.get("cut") is None
    assert [one.partition(":")[0] for one in timings.problems()] == [f"{name}.json" for name in sorted(damaged)]
    assert timings.tokens() == {"sw1-a", *damaged}


@settings(max_examples=seeds.examples(40, 600))
@given(text=st.binary(max_size=200), at=st.integers(0, 3000))
def test_a_record_of_any_content_is_read_or_skipped(timings, text, at):
    whole = json.dumps(asdict(RUN), indent=1).encode()
    timings.folder.mkdir(exist_ok=True)
    timings._path("sw1-a").write_bytes(whole[:at] + text + whole[at + len(text) :])
    assert len(timings.all()) + len(list(timings.problems())) == 1


def test_the_oldest_records_are_removed_beyond_the_maximum(timings, monkeypatch):
    monkeypatch.setattr("infra.ledger.timings.MOST", 2)
    for number in range(4):
        timings.save(RunTimes(token=f"t{number}", run="r", vendor="local", asked_at=float(number)))
        os.utime(timings._path(f"t{number}"), (number, number))
    timings.prune()
    assert timings.tokens() == {"t2", "t3"}
