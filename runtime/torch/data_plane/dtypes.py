"""Names of the dtypes that tensors may have on the wire and in the timeline."""

from typing import Final

import torch

DTYPE_NAMES: Final = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bool: "bool",
}

DTYPES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}

#: Horovod's set and bfloat16; the rest have no arithmetic that a reduction could use.
REDUCIBLE: Final = frozenset({torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64})
