"""The errors that the data steps raise on purpose.

    DataError           1   something failed: the network, a damaged file
    ├── HubSilent       69  the hub gives no answer: there may be no network
    └── InputError      2   what was asked for cannot be read: an unknown source, a missing file or column
        └── NotThere    1   the hub answers that it has no such data set, or none for this token
    ConfigError         2   a configuration is wrong in itself, whatever there is to read

A message is one or two lines: what was tried, what was seen, what to type instead.
"""


class DataError(Exception):
    exit_code = 1


class HubSilent(DataError):
    exit_code = 69  # EX_UNAVAILABLE; the control side reads it as `infra.train_env.UNREACHABLE`


class InputError(DataError):
    exit_code = 2


class NotThere(InputError):
    exit_code = 1


class ConfigError(ValueError):
    """A configuration that names an unknown key or holds a value of the wrong kind."""
