"""Charts of many runs in one frame, for any values."""

import re

from hypothesis import given
from hypothesis import strategies as st

from trainer.reporting.chart import Chart, layout
from trainer.reporting.overlay import CurveLine, colours, curves, differences

FIGURES = st.floats(-1e12, 1e12) | st.sampled_from([0.0, 1e-5, 1e-300, 0.1 + 0.2, float("nan"), float("inf")])


def chart_of(*figures):
    points = tuple((step, value) for step, value in enumerate(figures, 1))
    return str(curves("a figure", [CurveLine(name="one", group="arm", points=points)], colours(["arm"])))


def test_constant_metric_is_a_level_line_with_marks_around_it():
    for constant in (1e-5, 0.0, 0.3, -7.0):  # The running mean of 1e-5 differs in the last bit.
        found = chart_of(*[constant] * 6)
        (line,) = re.findall(r'points="([^"]+)"', found)
        assert len({point.split(",")[1] for point in line.split()}) == 1
        assert 'text-anchor="end"' in found and ">step</text>" in found and "nan" not in found


@given(st.lists(FIGURES, min_size=1, max_size=130), st.booleans())
def test_any_values_have_a_chart_with_distinct_marks(figures, smooth):
    points = tuple((step, value) for step, value in enumerate(figures, 1))
    marks = [words for _, words in layout(Chart("x", points, smooth=smooth)).up]
    assert len(set(marks)) == len(marks)
    assert "nan" not in chart_of(*figures)


@given(st.lists(st.tuples(FIGURES, FIGURES.map(abs)), min_size=1, max_size=4))
def test_non_finite_differences_are_omitted(rows):
    said = str(differences("against the best", [("arm", *one) for one in rows], colours(["arm"])))
    assert "nan" not in re.sub(r"<title>.*?</title>", "", said) and said.startswith("<svg" if "circle" in said else "<")
