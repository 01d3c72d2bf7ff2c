"""The tables of a trace as text, which travels in a file of events as metadata that viewers pass over.

Chrome's format has no place for what the events mean to us: which steps they belong to, which collectives match across ranks,
how well the clocks agree.  The file that `tl-trace merge`, `slice` and `convert` write carries that along, for our reader alone.
"""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import TraceError
from ..model.columns import Encoded, assemble
from ..model.trace import TABLES, Trace
from ..scanning import decode_args
from .cache import describe_meta, meta_from
from .source import Source

#: Changes with what is packed; other versions are read as plain events.
VERSION: Final = 2
KEY: Final = "tlkit_tables"
"""Name of the metadata events that carry the text."""
_PIECE_NBYTES: Final = 64 * 1024


def pack(trace: Trace, order: np.ndarray) -> list[str]:
    """Everything but args as events: pieces of base64 text, of a JSON object with the tables as Parquet behind it.

    Args:
        order: the spans' order in the file, whose events hold the args.
    """
    texts: dict[str, dict[str, list[str]]] = {}
    tables = []
    for name, columns in TABLES.items():
        table = getattr(trace, name)
        if name == "spans":
            table = table.iloc[order]
        texts[name] = {
            column: [str(text) for text in table[column].cat.categories]
            for column, dtype in columns.items()
            if dtype == "category"
        }
        arrays = {
            column: pa.array(table[column].cat.codes.to_numpy() if dtype == "category" else table[column].to_numpy())
            for column, dtype in columns.items()
        }
        written = io.BytesIO()
        pq.write_table(pa.table(arrays), written, compression="zstd")
        tables.append(written.getvalue())
    described = {"meta": describe_meta(trace.meta, ()), "texts": texts, "sizes": [len(table) for table in tables]}
    head = json.dumps(described).encode()
    text = base64.b64encode(b"".join((len(head).to_bytes(8, "little"), head, *tables))).decode("ascii")
    pieces = [text[at : at + _PIECE_NBYTES] for at in range(0, len(text), _PIECE_NBYTES)]
    return [
        f'{{"ph":"M","name":"{KEY}","pid":{trace.meta.ranks[0]},"args":{{"of":{len(pieces)},"data":"{piece}"}}}}'
        for piece in pieces
    ]


def unpack(pieces: Sequence[bytes], source: Source) -> Trace | None:
    """The trace without args; `args_row` counts the spans in the file's order.

    Args:
        pieces: args of the events, in order.

    Returns:
        None if pieces are missing.

    Raises:
        TraceError: the text is damaged.
    """
    decoded = [decode_args(piece) for piece in pieces]
    if not decoded or decoded[0].get("of") != len(decoded):
        return None
    text = "".join(str(piece.get("data", "")) for piece in decoded)
    try:
        packed = base64.b64decode(text, validate=True)
        at = 8 + int.from_bytes(packed[:8], "little")
        described = json.loads(packed[8:at])
        tables: dict[str, Any] = {}
        for (name, columns), size in zip(TABLES.items(), described["sizes"], strict=True):
            read = pq.read_table(io.BytesIO(packed[at : at + size]))
            at += size
            part: dict[str, np.ndarray | Encoded] = {
                column: (read[column].to_numpy(), described["texts"][name][column])
                if dtype == "category"
                else read[column].to_numpy()
                for column, dtype in columns.items()
            }
            tables[name] = assemble(columns, [part])
        meta = meta_from({**described["meta"], "files": [0]}, (source,))
    except (ValueError, KeyError, TypeError, IndexError, OverflowError, OSError, pa.ArrowException) as error:
        raise TraceError(f"{source.path}: the description of its events is damaged: {error}") from error
    spans = tables["spans"]
    spans["args_row"] = np.where(spans["args_row"] >= 0, np.arange(len(spans)), -1)
    trace = Trace(meta=meta, **tables)
    trace.check()
    return trace
