"""Drills of the rehearsed runpod."""

from tests.packs.drill.drills import MARKS, Drills

pytestmark = MARKS


class TestRunpod(Drills):
    vendor = "runpod"
