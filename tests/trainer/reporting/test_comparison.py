"""Two runs on one page."""

from trainer.reporting import comparison
from trainer.reporting.run_report import PhaseStory, Story

LINES = [{"step": step, "loss": 6.0 - step / 10} for step in (1, 2, 3)]


def story(run: str, *lines: dict) -> Story:
    return Story(run, [("state", "succeeded")], [PhaseStory(name="base", lines=lines)], "now")


def test_runs_are_compared_at_the_last_common_step():
    page = comparison.page(story("calm-1", *LINES), story("busy-2", *LINES[:2]))
    assert "<td>5.7</td><td>5.8</td><td>+0.1</td>" in page and "<polyline" in page


def test_run_without_local_metrics_is_named_instead_of_an_empty_table():
    page = comparison.page(story("calm-1", *LINES), story("busy-2"))
    assert "No comparison: figures of busy-2 are missing on this machine." in page and "<polyline" not in page
