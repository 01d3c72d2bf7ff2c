"""Which collectives user code calls and waits for; all others are the runtime's own."""

from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts

#: Callers that are user code; the runtime's own are the gradients, SyncBatchNorm and the like.
USER: Final = ("user", "object", "barrier", "group", "parameters")
#: Parameters are broadcast by user code, and gathered before each layer where a library has divided them over the ranks.
PARAMETERS: Final = "parameters"
GATHERED: Final = "allgather"


def is_called_by_user(table: pd.DataFrame) -> np.ndarray:
    """Of a table of collectives: bool[row]."""
    is_sharded = (table["caller"] == PARAMETERS) & (table["kind"] == GATHERED)
    called: np.ndarray = (table["caller"].isin(list(USER)) & (table["blocking"] == 1) & ~is_sharded).to_numpy()
    return called


def called_by_user(facts: Facts) -> np.ndarray:
    """The same for the operations of the graph: bool[operation]."""
    assert facts.graph is not None
    operations = facts.graph.operations
    caller, kind = (np.array(values, dtype=object) for values in (operations.caller, operations.kind))
    is_sharded = (caller == PARAMETERS) & (kind == GATHERED)
    called: np.ndarray = np.isin(caller, USER) & (operations.blocking == 1) & ~is_sharded
    return called
