"""What went wrong, in TensorFlow's classes.

Horovod's operations are TensorFlow's own and raise its errors: FailedPrecondition where the ranks disagree, InvalidArgument for
what makes no sense, Unknown where a rank is gone.  Inside a graph TensorFlow itself chooses the class for what Python code
raises (InvalidArgument for ValueError and TypeError, Unknown for the rest) and keeps the words, by which `is_internal` knows
ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import tensorflow as tf

from ..core import engine
from ..core.errors import NOT_INITIALIZED, HorovodInternalError

#: In the words of an error of ours, whatever class TensorFlow has made of it.
MARK: Final = "HorovodInternalError"

XLA: Final = (
    "Horovod's operations run in Python on the host, which XLA cannot compile: take jit_compile=True off tf.function, or give "
    "model.compile(..., jit_compile=False) with the TensorFlow backend of Keras. (Functions that are called inside and hold no "
    "Horovod operation may keep it.)"
)


def _class_of(error: HorovodInternalError) -> type[Exception]:
    running = engine.current()
    if str(error) == NOT_INITIALIZED:
        kind: type[Exception] = tf.errors.FailedPreconditionError
    elif running is None or running.control.tensor_table.closed:
        kind = tf.errors.UnknownError
    else:
        kind = tf.errors.FailedPreconditionError
    return kind


@contextmanager
def as_tensorflows() -> Iterator[None]:
    """Whatever the runtime raises inside is raised as TensorFlow's."""
    try:
        yield
    except HorovodInternalError as error:
        kind = _class_of(error)
        raise kind(None, None, f"{MARK}: {error}") from error
    except ValueError as error:
        raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
    except NotImplementedError as error:
        raise tf.errors.UnimplementedError(None, None, str(error)) from error


def is_internal(error: BaseException) -> bool:
    """Whether an error says that a collective failed, whichever framework has carried it here."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, HorovodInternalError) or MARK in str(seen):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
