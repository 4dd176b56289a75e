"""The metrics of runs: read incrementally, thinned for a screen."""

import json

import pytest

from flows.reading import timeline
from packs.page.views.figures import FigureTable, GrowingFigures, thin
from packs.page.views.sections.runs import _placed


def line(step, **more):
    return json.dumps({"step": step, "tokens": 10 * step, "loss": 1.0 / step, "at": 1000.0 + step, **more}) + "\n"


def table(count, **more):
    found = FigureTable()
    for step in range(1, count + 1):
        found.add(line(step, **more).encode())
    return found


class File:
    def __init__(self, text=""):
        self.text, self.read_bytes = text, 0

    def read(self, offset):
        content = self.text.encode()[offset:]
        self.read_bytes += len(content)
        return content


def test_lost_pod_is_marked_everywhere_and_a_checkpoint_of_a_different_phase_is_not():
    found = table(10)  # From 1001 to 1010 s.
    at = {when: _placed(found, "step", when, timeline.LOST, "gone") for when in (900.0, 1000.3, 1005.0)}
    assert {when: one["x"] for when, one in at.items()} == {900.0: None, 1000.3: 1, 1005.0: 5}
    assert _placed(found, "step", 900.0, timeline.SAVED, "saved") is None
    assert _placed(FigureTable(), "step", 900.0, timeline.LOST, "gone")["x"] is None


def test_thinned_curve_keeps_every_spike_and_both_ends():
    found = table(1000)
    found.columns["loss"].values[777] = 99.0
    curve = thin(found, "loss", most=50)
    assert {len(values) for values in curve.values()} == {50}
    assert max(curve["high"]) == 99.0 and min(curve["low"]) == pytest.approx(1 / 1000)
    assert curve["x"][-1] == 1000 and curve["mean"][0] == pytest.approx(sum(1 / n for n in range(1, 21)) / 20, rel=1e-4)
    assert all(low <= mean <= high for low, mean, high in zip(curve["low"], curve["mean"], curve["high"], strict=True))


def test_few_points_are_kept_and_a_zoom_has_more_points():
    assert thin(table(3), "loss", most=50)["mean"] == [1.0, 0.5, pytest.approx(1 / 3, rel=1e-4)]
    assert thin(table(1000), "loss", most=50, since=500, until=520)["x"] == list(range(500, 521))
    assert thin(table(1000), "none", most=50)["x"] == []
    assert thin(FigureTable(), "loss", most=50)["x"] == []


def test_x_axis_is_steps_tokens_or_hours():
    found = table(3)
    assert thin(found, "loss", most=9, by="tokens")["x"] == [10, 20, 30]
    assert thin(found, "loss", most=9, by="time")["x"] == [0, pytest.approx(1 / 3600), pytest.approx(2 / 3600)]


def test_growing_file_is_read_incrementally_and_half_a_line_waits():
    file = File(line(1) + line(2)[:-5])
    growing = GrowingFigures(file.read)
    assert list(growing.refresh().steps) == [1]
    file.text = line(1) + line(2) + line(3)
    assert list(growing.refresh().steps) == [1, 2, 3]
    version, before = growing.version, file.read_bytes
    growing.refresh()
    assert growing.version == version
    assert file.read_bytes - before <= 256


def test_run_that_returned_to_its_checkpoint_is_read_again():
    file = File("".join(map(line, range(1, 60))))
    growing = GrowingFigures(file.read)
    growing.refresh()
    for shorter in ("".join(map(line, range(1, 20))), "".join(line(step, lr=0.1) for step in range(1, 80))):
        file.text = shorter
        found = growing.refresh()
        assert list(found.steps) == [json.loads(one)["step"] for one in shorter.splitlines()]


@pytest.mark.parametrize("odd", [
    "{", "[]", "1", '{"step": 1}', '{"step": -1, "tokens": 1, "loss": 1.0}', '{"step": true, "tokens": 1, "loss": 1.0}',
    '{"step": 1, "tokens": 1, "loss": NaN}', '{"step": 1, "tokens": 1, "loss": 1e300}',
    '{"step": 1, "tokens": "1", "loss": 1.0}',
    "\xff", "[" * 5000,
])  # fmt: skip
def test_invalid_line_is_skipped(odd):
    found = FigureTable()
    found.add(odd.encode("latin-1"))
    assert not found.steps


def test_sparse_metrics_stay_at_their_steps():
    found = table(4)
    one = line(5, mfu=0.4, data_wait_s=0.1, step_s=0.5, mfu_of="a peak", name="text", flag=True)
    found.add(one.encode())
    assert thin(found, "mfu", most=9) == {"x": [5], "mean": [0.4], "low": [0.4], "high": [0.4]}
    assert thin(found, "data_share", most=9)["mean"] == [0.2]
    assert list(found.peaks) == ["a peak"] and not {"name", "flag"} & found.columns.keys()


def test_dense_metric_stores_no_positions_and_a_sparse_metric_does():
    found = FigureTable()
    for step in range(1, 7):
        found.add(line(step, **({} if step in (1, 4) else {"mfu": step / 10})).encode())
    assert found.columns["loss"].rows == range(6)
    assert list(found.columns["mfu"].rows) == [1, 2, 4, 5]
    curve = thin(found, "mfu", most=9)
    assert (curve["x"], curve["mean"]) == ([2, 3, 5, 6], [0.2, 0.3, 0.5, 0.6])
    assert thin(found, "mfu", most=9, since=3, until=5)["x"] == [3, 5]
    assert thin(found, "loss", most=9, since=2, until=4)["x"] == [2, 3, 4]


def test_similar_lines_parsed_together_equal_lines_parsed_one_by_one(monkeypatch):
    odd = [
        "{",
        '{"step": 7}',
        line(3, loss=1e300).strip(),
        line(4, step_s=0.0, data_wait_s=1.0).strip(),
        line(5, lr=None, mfu_of="a peak").strip(),
        line(6, config={"depth": 2}).strip(),
        line(2**70).strip(),
        line(8, **{"class": 1.0}).strip(),
        line(9, loss=True).strip(),
        line(10, tokens=1.5).strip(),
    ]
    lines = [line(step, mfu=0.3, step_s=0.5, data_wait_s=0.1).strip().encode() for step in range(1, 5001)]
    for number, one in enumerate(odd):
        lines.insert(301 * number, one.encode())
    alone = FigureTable()
    for one in lines:
        alone.add(one)
    taken = []
    add_one = FigureTable._add_one
    monkeypatch.setattr(FigureTable, "_add_one", lambda self, one: (taken.append(one), add_one(self, one)))
    together = FigureTable()
    together.add(b"\n".join(lines))
    assert len(taken) < 100
    assert (together.steps, together.tokens, together.at) == (alone.steps, alone.tokens, alone.at)
    assert (together.columns, together.peaks) == (alone.columns, alone.peaks)
