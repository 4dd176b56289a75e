"""The README names the keys of the inventory as the reader accepts them."""

import re

from packs.slurm.control.inventory import CLUSTER_KEYS, QUEUE_KEYS
from store import packs


def test_readme_names_every_key_of_a_cluster():
    text = (packs.FOLDER / "slurm" / "README.md").read_text("utf-8")
    said = re.search(r"The keys of a cluster are (.*?); each partition", text, re.DOTALL)
    assert said and set(re.findall(r"`(\w+)`", said[1])) == {*CLUSTER_KEYS, *QUEUE_KEYS}
