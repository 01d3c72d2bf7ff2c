"""The reduce operations, with the numbers that Horovod gives them."""

from enum import IntEnum


class ReduceOp(IntEnum):
    """How values of several ranks become one.  Scripts see plain integers."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5
