"""Errors that end a process before it serves."""


class StartupError(Exception):
    """The process cannot start, and its operator can change that.

    The message says what is wrong and what to do; it is shown without a traceback.

    Attributes:
        exit_code: what the process ends with.
    """

    exit_code = 2
