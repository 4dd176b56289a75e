"""The output of programs: how much of it is read."""
