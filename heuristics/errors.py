"""The one exception type that the command line turns into a message and exit status 2."""


class TilecastError(ValueError):
    """A request that cannot be met, told in one line: the value, what is allowed, what to do."""
