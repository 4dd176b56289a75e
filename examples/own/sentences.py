"""Custom data source: 1,000 generated sentences about numbers, in a fixed order.

SLIPWAY_EXTENSIONS=examples/own/sentences.py ./inv shard --source sentences --mode smoke
"""

NAMES = "zero one two three four five six seven eight nine".split()


def source():
    """Yield documents in a fixed order: strings, or dictionaries of `text` and FineWeb columns such as `id`, `url`."""
    for first in range(100):
        for second in range(10):
            words = f"{NAMES[first // 10]} {NAMES[first % 10]}"
            yield {
                "text": f"{words} and {NAMES[second]} make {first + second}.",
                "id": f"{first}+{second}",
                "language": "en",
            }
