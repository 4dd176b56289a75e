"""Clean the Zen of Python into a file (`clean PATH`), or count the words of the file (`count PATH`)."""

import collections
import re
import sys
from pathlib import Path

verb, path = sys.argv[1], Path(sys.argv[2])
if verb == "clean":
    import this

    spoken = "".join(this.d.get(letter, letter) for letter in this.s)
    path.write_text("\n".join(re.findall(r"[a-z]+", spoken.lower())) + "\n")
else:
    words = collections.Counter(path.read_text().split())
    assert words["better"] == 8, words
    print(f"{sum(words.values())} words; the most common: {words.most_common(3)}")
