"""Makes the tables beside it: a small export of Nsight Systems as `nsys export --type parquetdir` lays it out.

    python samples/formats/nsys-folder/make.py

Two processes train for ten steps on a device each; process 1 waits for its input.  No real export of this kind was at hand.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
STEPS = 10
_US = 1000
_PUSH_POP = 59
STRINGS = ("sgemm", "cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "python")

Row = dict[str, int | str | None]
Rows = list[Row]


def main() -> None:
    """Write the tables."""
    ranges: Rows = []
    calls: Rows = []
    kernels: Rows = []
    for rank in range(2):
        process = (1 << 48) | (100 + rank) << 24
        thread = process | 7
        at = 5_000
        for step in range(STEPS):
            wait = 6_000 if rank else 100
            begin = at
            names = (("DATA_WAIT", wait), ("FORWARD", 900), ("BACKWARD", 1_800), ("OPTIMIZER_STEP", 200))
            for number, (name, took) in enumerate(names):
                text: Row = {
                    "start": at * _US,
                    "end": (at + took) * _US,
                    "eventType": _PUSH_POP,
                    "text": name,
                    "globalTid": thread,
                }
                ranges.append({**text, "textId": None, "int64Value": None})
                if number:
                    correlation = step * 10 + number
                    call: Row = {"start": (at + 20) * _US, "end": (at + 28) * _US, "globalTid": thread, "nameId": 2}
                    calls.append({**call, "correlationId": correlation})
                    device: Row = {"deviceId": rank, "correlationId": correlation, "globalPid": process, "shortName": 1}
                    span: Row = {
                        "start": (at + 40) * _US,
                        "end": (at + took - 5) * _US,
                        "streamId": 7,
                        "demangledName": 1,
                    }
                    kernels.append({**device, **span})
                    if name == "BACKWARD":
                        span = {
                            "start": (at + 600) * _US,
                            "end": (at + took - 10) * _US,
                            "streamId": 20,
                            "demangledName": 3,
                        }
                        kernels.append({**device, **span})
                at += took
            whole: Row = {
                "start": begin * _US,
                "end": at * _US,
                "eventType": _PUSH_POP,
                "text": "STEP",
                "globalTid": thread,
            }
            ranges.append({**whole, "textId": None, "int64Value": step})
    threads: Rows = [{"nameId": 4, "globalTid": ((1 << 48) | (100 + rank) << 24) | 7} for rank in range(2)]
    strings: Rows = [{"id": number + 1, "value": value} for number, value in enumerate(STRINGS)]
    tables: dict[str, Rows] = {
        "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.20.1"}],
        "StringIds": strings,
        "ThreadNames": threads,
        "NVTX_EVENTS": ranges,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
    }
    for name, rows in tables.items():
        pq.write_table(pa.Table.from_pylist(rows), HERE / f"{name}.parquet", compression="zstd")


if __name__ == "__main__":
    main()
