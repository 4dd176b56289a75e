"""The history of a run, and the same run again: its story, its receipt, its repetition, the plain files of it."""
