"""The errors that the data steps raise on purpose.

    DataError           1  something failed: the network, a damaged file
    └── InputError      2  what was asked for cannot be read: an unknown source, a missing file or column
    ConfigError         2  a configuration is wrong in itself, whatever there is to read

A message is one or two lines: what was tried, what was seen, what to type instead.
"""


class DataError(Exception):
    exit_code = 1


class InputError(DataError):
    exit_code = 2


class ConfigError(ValueError):
    """A configuration that names an unknown key or holds a value of the wrong kind."""
