"""The errors that the data steps raise on purpose.

    DataError           1  something failed: the network, a damaged file
    └── InputError      2  what was asked for cannot be read: an unknown source, a missing file or column

A message is one or two lines: what was tried, what was seen, what to type instead.
"""


class DataError(Exception):
    exit_code = 1


class InputError(DataError):
    exit_code = 2
