"""Errors raised on purpose by the data steps, with exit codes.

    DataError           1   a failure: the network, a damaged file
    ├── HubSilent       69  the hub does not respond: the network may be down
    └── InputError      2   the request cannot be read: an unknown source, a missing file or column
        └── NotThere    1   the hub responds that the data set does not exist, or not for this token
    ConfigError         2   an invalid configuration, independent of the input

A message has one or two lines: the attempt, the observation, and the command or option to use instead.
"""


class DataError(Exception):
    exit_code = 1


class HubSilent(DataError):
    exit_code = 69  # EX_UNAVAILABLE; the control side reads this code as `infra.train_env.UNREACHABLE`


class InputError(DataError):
    exit_code = 2


class NotThere(InputError):
    exit_code = 1


class ConfigError(ValueError):
    """A configuration that names an unknown key or holds a value of the wrong kind."""
