"""Drills of the rehearsed lium."""

from tests.packs.drill.drills import MARKS, Drills

pytestmark = MARKS


class TestLium(Drills):
    vendor = "lium"
