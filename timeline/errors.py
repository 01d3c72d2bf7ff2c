"""Every error that the toolkit raises on purpose, as one tree.

::

    TlkitError                  catch this to catch us
    ├── TraceError              a trace that cannot be read
    │   ├── TraceNotFoundError  no such file, or no shard where one was promised
    │   ├── UnknownFormatError  readable, but no reader knows it
    │   └── ReaderError         a reader failed on it in a way that its author did not foresee
    ├── UsageError              an argument or setting that makes no sense
    └── RuntimeFailure          the distributed runtime could not start or go on

A message says what is wrong, where, and what to do next.  Commands print it to stderr as one line and exit with
`exit_code`.
"""


class TlkitError(Exception):
    """Root of the tree."""

    exit_code = 2


class TraceError(TlkitError):
    """A trace cannot be read."""


class TraceNotFoundError(TraceError):
    """Nothing is there under the given path."""


class UnknownFormatError(TraceError):
    """No reader recognises the content."""


class ReaderError(TraceError):
    """A reader failed where it should have said what is wrong: a fault of the reader, or a file damaged in a new way."""


class UsageError(TlkitError):
    """An argument or a setting makes no sense."""


class RuntimeFailure(TlkitError):
    """The distributed runtime could not start or go on."""

    exit_code = 1


def first_line(error: BaseException) -> str:
    """The name and message of a foreign exception, on one line."""
    told = str(error).strip().splitlines()
    return f"{type(error).__name__}: {told[0][:200]}" if told else type(error).__name__
