"""The report of a run: charts of the existing data, a self-contained page, at any moment of a run."""

import html.parser
import io
import math
import re
from dataclasses import replace

from PIL import Image

from trainer.reporting import chart
from trainer.reporting.chart import (
    HEIGHT,
    LEAST_LEFT,
    LETTER,
    TOP,
    WIDTH,
    Chart,
    layout,
    number,
    png,
    running_mean,
    svg,
    thin,
    ticks,
)
from trainer.reporting.run_report import PhaseStory, Story, charts, page

LINES = [
    {"step": step, "loss": 1 + 7 / step, "grad_norm": 1.0, "lr": 1e-3, "tokens": step * 64, "tokens_per_s": 100.0,
     "mfu": 0.4, "memory_bytes": 3e9, "data_wait_s": 0.01, "step_s": 0.5}
    for step in range(1, 101)
]  # fmt: skip
HOSTILE = "</td><script>alert(1)</script><b>"
SAMPLES = [{"step": step, "prompt": "Who?", "text": f"{HOSTILE} {step}"} for step in range(4, 101, 4)]


class Whole(html.parser.HTMLParser):
    """Checks that every element is closed, in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, name, attributes):
        self.seen.append(name)
        if name != "meta":
            self.open.append(name)
        assert not {"src", "href", "onclick"} & {key for key, _ in attributes}

    def handle_endtag(self, name):
        assert self.open.pop() == name


def test_chart_stays_in_its_frame_and_its_line_follows_the_metrics():
    found = layout(Chart("x", tuple((one["step"], one["loss"]) for one in LINES)))
    (line,) = found.lines
    assert [y for _, y in line] == sorted(y for _, y in line)  # The loss falls, and y grows downwards.
    assert [x for x, _ in line] == sorted(x for x, _ in line)
    assert all(LEAST_LEFT <= x <= WIDTH and TOP <= y <= HEIGHT for x, y in line)
    assert [words for _, words in found.across] == ["20", "40", "60", "80", "100"]
    assert [words for _, words in found.up] == ["2", "4", "6", "8"]
    assert found.bands[-1][2] == "to step 100: 1.07"


def test_marks_are_round_and_few():
    for low, high in ((0, 1), (1, 400_000), (-0.3, 0.017), (1e-6, 2e-4), (6.9, 7.1)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 6
        assert all(low - 1e-12 <= one <= high + 1e-12 for one in found)
        assert all(len(f"{one / 10 ** math.floor(math.log10(abs(one))):.3g}") <= 4 for one in found if abs(one) > 1e-12)
    words = [number(one) for one in (0, 0.031, 2e-5, 0.0004, 250, 2000, 34_000, 1_200_000, 5e11)]
    assert words == ["0", "0.031", "2.0e-05", "0.0004", "250", "2,000", "34k", "1.2M", "500G"]


def test_non_finite_values_are_omitted_and_one_step_is_a_dot():
    assert layout(Chart("x", ((1, float("nan")), (2, float("inf"))))).lines == []
    assert "<circle" in svg(Chart("x", ((1, 2.0),)))
    assert Image.open(io.BytesIO(png(Chart("x", ((1, 2.0),))))).size == (2 * WIDTH, 2 * (HEIGHT + chart.HEAD))


def test_long_runs_are_thinned_to_means_and_smoothed_with_exact_ends():
    points = [(step, float(step)) for step in range(1, 100_001)]
    assert len(thin(points)) <= chart.MOST_POINTS
    assert math.isclose(sum(y for _, y in thin(points)) / len(thin(points)), 50_000.5)
    smooth = running_mean(points[:1000])
    assert (smooth[0], smooth[-1]) == (points[0], points[999])
    assert all(math.isclose(y, x) for x, y in smooth)  # A straight line stays straight.


def test_image_draws_the_line_at_the_position_of_the_layout():
    one = Chart("x", tuple((step, step % 7) for step in range(1, 60)))
    image = Image.open(io.BytesIO(png(one))).convert("RGB")
    for x, y in layout(one).lines[-1][1:-1]:
        red, _, blue = image.getpixel((round(x * chart.KEPT), round((y + chart.HEAD) * chart.KEPT)))
        assert blue > red + 60, (x, y)


def test_page_is_complete_at_any_moment_of_a_run():
    config = {"steps": 200, "model": {"vocab_size": 320}, "mixture": None}
    moments = (
        PhaseStory("base", "waiting", config),
        PhaseStory("base", "running", config, LINES[:1]),
        PhaseStory("base", "running", config, LINES, SAMPLES),
        PhaseStory("base", "done", {**config, "steps": 100}, LINES, SAMPLES, {"bits_per_byte": 1.5, "gzip": 2.5}),
        PhaseStory("elsewhere", lines=[{"step": 1, "loss": 2.0, "tokens": 4}]),  # Of an earlier version.
    )
    for phase in moments:
        text = page(Story("brave-otter-3", [("cost, USD", "0.00"), ("state", HOSTILE)], [phase], "now", HOSTILE))
        parser = Whole()
        parser.feed(text)
        assert parser.open == []
        assert "script" not in parser.seen
        assert text.count("<svg") == len(list(charts(phase)))
    assert [name for name, _ in charts(moments[4])] == ["loss"]
    rl = [{"step": 1, "loss": 0.1, "lr": 1e-4, "mismatch": 0.004, "reward_right": 0.5, "reward": 0.6, "right": 0.5}]
    assert [chart.title for _, chart in charts(PhaseStory("rl", lines=rl))] == [
        "rl: Loss, nats per token",
        "rl: Reward of an answer, mean",
        "rl: Right answers, sampled",
        "rl: Log-probabilities, engine against trainer, nats",
        "rl: Learning rate",
        "rl: Reward right",
    ]
    assert "base 100 of 200 steps" in page(Story("r", (), [moments[2]], "now"))
    said = page(Story("r", (), [moments[3]], "now"))
    assert "1.5000 bits per byte (gzip 2.500)" in said
    steps = [int(one) for one in re.findall(r'<td class="number">(\d+)</td>', said)]
    assert steps[-1] == 100 and 8 <= len(steps) <= 12  # Of 25 moments.


def test_axis_labels_are_distinct_and_fit():
    for low, high, unit in ((4.95612, 4.95614, ""), (0.0101, 0.0502, " GB"), (1e6, 1e6 + 9, ""), (2e-5, 2.1e-5, "")):
        found = layout(Chart("c", ((1e6, low), (1e6 + 8, high)), unit=unit))
        for marks in (found.up, found.across):
            words = [word for _, word in marks]
            assert len(words) >= 2 and len(set(words)) == len(words)
        assert found.left - LETTER * max(len(word) for _, word in found.up) >= 6
        ends = [(x - LETTER * len(word) / 2, x + LETTER * len(word) / 2) for x, word in found.across]
        assert all(end < begin for (_, end), (begin, _) in zip(ends, ends[1:], strict=False))
        assert all(found.left <= x <= WIDTH for x, _ in found.lines[-1])
        # A line of words lies between the words of the two axes.
        assert max(y for y, _ in found.up) + 4 <= HEIGHT - 8 - 18


def test_page_has_no_empty_card():
    lost = PhaseStory("base", "running", lines=[{"step": 1, "tokens": 9, "loss": math.nan, "grad_norm": None}])
    text = page(Story("brave-otter-3", [], [lost, PhaseStory("mid", "waiting")], "now"))
    assert list(charts(lost)) == [] and "tiles" not in text.partition("<main>")[2]
    assert not re.search(r'<div class="(card|cards|card wide|tiles)">(<h2>[^<]*</h2>)?</div>', text)
    assert "<svg" not in text and "1 min 03 s" not in text
    spent = PhaseStory("sft", lines=[{"step": 1, "tokens": 9, "loss": 1.0, "step_s": 63.0}])
    assert "1 min 03 s" in page(Story("r", [], [spent], "now"))


def test_image_names_its_run_and_axis_and_marks_events(tmp_path):
    lines = [{**one, "at": 1000.0 + one["step"]} for one in LINES]
    marks = [(900.0, "before it began"), (1010.5, "its pod was lost: <preempted>"), (1130.0, "saved at its end")]
    story = Story(
        "brave-otter-3",
        (),
        [PhaseStory("base", "done", {}, lines)],
        "now",
        marks=marks,
        cost=[(0.0, 0.0), (30.0, 1.5), (90.0, 1.5)],
    )
    found = dict(charts(story.phases[0], story))["loss"]
    assert found.marks == ((11.0, "its pod was lost: <preempted>"), (100.0, "saved at its end"))
    assert [words for _, words in layout(found).marks] == [words for _, words in found.marks]
    text = page(story)
    reader = Whole()
    reader.feed(text)
    assert text.count('class="mark"') == 2 * len(list(charts(story.phases[0]))) and "<preempted>" not in text
    assert ">Cost, US dollars<" in text and ">minute<" in text and ">step<" in text
    assert png(found) != png(replace(found, run="")) != png(replace(found, run="", marks=()))
