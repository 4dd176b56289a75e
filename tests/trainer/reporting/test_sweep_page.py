"""Pictures of many runs over each other, whatever their figures are."""

import re

from hypothesis import given
from hypothesis import strategies as st

from trainer.reporting.chart import Chart, layout
from trainer.reporting.overlay import CurveLine, colours, curves, differences

FIGURES = st.floats(-1e12, 1e12) | st.sampled_from([0.0, 1e-5, 1e-300, 0.1 + 0.2, float("nan"), float("inf")])


def drawn(*figures):
    points = tuple((step, value) for step, value in enumerate(figures, 1))
    return str(curves("a figure", [CurveLine(name="one", group="arm", points=points)], colours(["arm"])))


def test_a_figure_that_never_changes_is_a_level_line_with_marks_around_it():
    for constant in (1e-5, 0.0, 0.3, -7.0):  # the running mean of 1e-5 differs from it in the last bit
        found = drawn(*[constant] * 6)
        (line,) = re.findall(r'points="([^"]+)"', found)
        assert len({point.split(",")[1] for point in line.split()}) == 1
        assert 'text-anchor="end"' in found and ">step</text>" in found and "nan" not in found


@given(st.lists(FIGURES, min_size=1, max_size=130), st.booleans())
def test_any_figures_have_a_picture_with_marks_that_differ(figures, smooth):
    points = tuple((step, value) for step, value in enumerate(figures, 1))
    marks = [words for _, words in layout(Chart("x", points, smooth=smooth)).up]
    assert len(set(marks)) == len(marks)
    assert "nan" not in drawn(*figures)


@given(st.lists(st.tuples(FIGURES, FIGURES.map(abs)), min_size=1, max_size=4))
def test_differences_that_are_no_numbers_are_left_out(rows):
    said = str(differences("against the best", [("arm", *one) for one in rows], colours(["arm"])))
    assert "nan" not in re.sub(r"<title>.*?</title>", "", said) and said.startswith("<svg" if "circle" in said else "<")
