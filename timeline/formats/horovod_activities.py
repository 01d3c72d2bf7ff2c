"""What the activities in a timeline of Horovod are, and how large its tensors."""

from typing import Final

from ..vocabulary import COLLECTIVE_KINDS, DTYPE_NBYTES, NEGOTIATE_PREFIX, Category

TOP_LEVEL: Final = {kind.upper(): kind for kind in COLLECTIVE_KINDS}
_QUEUES: Final = {"QUEUE", "WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA"}
_COPIES: Final = ("MEMCPY_", "INIT_FUSION_BUFFER", "ALLOCATE_", "COPY_ALLGATHER_OUTPUT")
#: Larger sizes are damage.
_MAX_NBYTES: Final = 2**60
TRANSPORTS: Final = ("SHM", "GLOO", "NCCL", "MPI", "CCL", "DDL")


def category_of(name: str) -> Category:
    """What an activity is, by its name."""
    if name.startswith(NEGOTIATE_PREFIX):
        return Category.NEGOTIATE
    if name in _QUEUES:
        return Category.QUEUE
    if name.startswith(_COPIES):
        return Category.FUSION
    if name in TOP_LEVEL or name.startswith(tuple(f"{prefix}_" for prefix in TRANSPORTS)):
        return Category.COLLECTIVE
    return Category.OTHER


def nbytes_of(dtype: object, shape: object) -> int:
    """Bytes of a tensor described as Horovod does, `float32` and `[2, 3]`; -1 if that cannot be read."""
    size = DTYPE_NBYTES.get(str(dtype))
    text = str(shape).strip()
    if size is None or not (text.startswith("[") and text.endswith("]")):
        return -1
    for part in text[1:-1].split(","):
        if part.strip():
            try:
                size *= int(part)
            except ValueError:
                return -1
    return size if abs(size) < _MAX_NBYTES else -1
