"""Confidence intervals: compared with published figures, and by counting the coverage of the true value."""

import math
import random

import pytest

from trainer.evaluation.intervals import mcnemar, paired_ratio, paired_share, ratio, share, unpaired_difference


@pytest.mark.parametrize(
    ("true", "of", "low", "high"),  # Newcombe 1998, table I: the score method.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_proportion_has_the_interval_of_the_published_examples(true, of, low, high):
    found = share(true, of)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)
    assert found.value == true / of


def test_difference_of_two_samples_has_the_interval_of_the_published_example():
    found = unpaired_difference(share(48, 80), share(56, 70))  # Newcombe 1998, part II, table II (a): 56/70 less 48/80
    assert (round(found.low, 4), round(found.high, 4)) == (0.0524, 0.3339)


def test_interval_of_a_ratio_covers_the_true_value_in_about_95_of_100_samples():
    chance, held, trials = random.Random(5), 0, 600
    for _ in range(trials):
        sizes = [chance.randrange(20, 200) for _ in range(60)]
        costs = [size * chance.gammavariate(4, 0.5) for size in sizes]  # The true ratio is 2 for each.
        found = ratio(costs, sizes)
        held += found.low <= 2 <= found.high
    assert 0.92 <= held / trials <= 0.975
    assert math.isnan(ratio([1.0], [2.0]).low) and ratio([1.0], [2.0]).to_dict()["low"] is None


def test_paired_difference_has_a_narrower_interval_than_two_measures():
    chance = random.Random(6)
    sizes = [float(chance.randrange(100, 200)) for _ in range(200)]
    first = [size * chance.uniform(1, 3) for size in sizes]
    second = [cost * 0.98 for cost in first]
    paired = paired_ratio(first, second, sizes, 1.0)
    loose = unpaired_difference(ratio(first, sizes), ratio(second, sizes))
    assert paired.value == pytest.approx(loose.value)
    assert paired.high < 0 < loose.high


def test_questions_answered_by_both_do_not_affect_the_comparison():
    first, second = [1] * 50 + [0] * 50, [1] * 50 + [0] * 40 + [1] * 10
    found, p = paired_share(first, second)
    assert found.value == pytest.approx(0.1) and found.low > 0
    assert p == pytest.approx(2 / 2**10)
    same, p = paired_share(first, first)
    assert (same.value, p) == (0.0, 1.0)
    # No difference in 100 questions is no certainty.
    assert same.high == -same.low == pytest.approx(1.96 / 102, rel=1e-3)
    assert mcnemar(2, 8) == pytest.approx(0.109375)  # 2 * (1 + 10 + 45) / 1024
