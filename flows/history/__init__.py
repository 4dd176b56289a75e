"""Explanation of the state of a run: the rules for the cause (`causes`) and the story (`why`)."""
