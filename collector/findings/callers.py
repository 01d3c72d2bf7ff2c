"""Which collectives user code calls and waits for; all others are the runtime's own."""

from typing import Final

import numpy as np
import pandas as pd

from ..facts import Facts

#: Callers that are user code; the runtime's own are the gradients, SyncBatchNorm and the like.
USER: Final = ("user", "object", "barrier", "parameters")


def is_called_by_user(table: pd.DataFrame) -> np.ndarray:
    """Of a table of collectives: bool[row]."""
    called: np.ndarray = (table["caller"].isin(list(USER)) & (table["blocking"] == 1)).to_numpy()
    return called


def called_by_user(facts: Facts) -> np.ndarray:
    """The same for the operations of the graph: bool[operation]."""
    assert facts.graph is not None
    operations = facts.graph.operations
    called: np.ndarray = np.isin(np.array(operations.caller, dtype=object), USER) & (operations.blocking == 1)
    return called
