"""The one exception type that the command line turns into a message and exit status 2."""


class TilecastError(ValueError):
    """A request that cannot be met. Its one line names the value, what is allowed, what to do."""


class NotNow(TilecastError):
    """A request that cannot be met at present, and may be met later."""


def one_line(error: BaseException) -> str:
    """What an exception is and says, in one line of 300 characters at most."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
