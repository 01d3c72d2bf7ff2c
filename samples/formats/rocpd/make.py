"""Makes the databases beside it, in the published schema of rocpd: two processes, twelve steps, rank 1 slower in forward.

    python samples/formats/rocpd/make.py

No real one was at hand: rocprofv3 needs an AMD device.
"""

import sqlite3
from pathlib import Path

HERE = Path(__file__).resolve().parent
_US = 1000
STEPS = 12

#: The tables that the reader looks at, with the columns of schema 3 that matter to it, and some that do not.
TABLES = {
    "metadata": "tag value",
    "string": "guid string",
    "info_node": "guid hash machine_id hostname",
    "info_process": "guid nid ppid pid start end command",
    "info_thread": "guid nid ppid pid tid name start end",
    "info_agent": "guid nid pid type absolute_index logical_index type_index name",
    "info_kernel_symbol": "guid nid pid code_object_id kernel_name display_name",
    "event": "guid category_id stack_id parent_stack_id correlation_id extdata",
    "region": "guid nid pid tid start end name_id event_id extdata",
    "kernel_dispatch": "guid nid pid tid agent_id kernel_id dispatch_id queue_id stream_id start end event_id extdata",
    "memory_copy": "guid nid pid tid start end name_id dst_agent_id src_agent_id size queue_id stream_id event_id extdata",
}


class Database:
    """One process' database."""

    def __init__(self, path: Path, rank: int) -> None:
        path.unlink(missing_ok=True)
        self._connection = sqlite3.connect(path)
        self._suffix = f"_0000{rank}1ab_77aa_7d3c_8e0f_00112233445{rank}"
        self._counts: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        for name, columns in TABLES.items():
            of_process = f'"rocpd_{name}{self._suffix}"'
            listed = ", ".join(f'"{column}"' for column in columns.split())
            self._connection.execute(f"CREATE TABLE {of_process} (id INTEGER PRIMARY KEY, {listed})")
            self._connection.execute(f'CREATE VIEW "rocpd_{name}" AS SELECT * FROM {of_process}')  # noqa: S608  names of our own

    def add(self, table: str, **values: object) -> int:
        """A row; returns its id."""
        number = self._counts[table] = self._counts.get(table, 0) + 1
        columns = ", ".join(f'"{name}"' for name in ("id", *values))
        marks = ", ".join("?" * (1 + len(values)))
        query = f'INSERT INTO "rocpd_{table}{self._suffix}" ({columns}) VALUES ({marks})'  # noqa: S608  names of our own
        self._connection.execute(query, (number, *values.values()))
        return number

    def text(self, value: str) -> int:
        """The number of a text."""
        if value not in self._strings:
            self._strings[value] = self.add("string", string=value)
        return self._strings[value]

    def event(self, category: str, stack: int) -> int:
        """What regions and dispatches of one call have in common."""
        return self.add("event", category_id=self.text(category), stack_id=stack)

    def close(self) -> None:
        """Write it."""
        self._connection.commit()
        self._connection.execute("VACUUM")
        self._connection.close()


def make(rank: int) -> None:
    """One rank's database."""
    database = Database(HERE / f"rank-{rank}_results.db", rank)
    add = database.add
    add("metadata", tag="schema_version", value="3")
    node = add("info_node", hostname="node-1", machine_id="m")
    process = add("info_process", nid=node, pid=4100 + rank, command="python train.py")
    thread = add("info_thread", nid=node, pid=process, tid=4100 + rank, name="python")
    agent = add("info_agent", nid=node, pid=process, type="GPU", type_index=rank, logical_index=rank, name="gfx942")
    kernels = {
        name: add("info_kernel_symbol", nid=node, pid=process, kernel_name=f"{name}.kd", display_name=name)
        for name in ("Cijk_forward", "Cijk_backward", "adam", "ncclDevKernel_Generic_1")
    }
    common = {"nid": node, "pid": process, "tid": thread}
    stack = 0

    def region(name: str, category: str, start_us: int, end_us: int, message: str = "") -> None:
        extra = f'{{"message":"{message}"}}' if message else "{}"
        event = database.event(category, stack)
        add(
            "region",
            **common,
            start=start_us * _US,
            end=end_us * _US,
            name_id=database.text(name),
            event_id=event,
            extdata=extra,
        )

    def launch(kernel: str, called_us: int, start_us: int, end_us: int, stream: int = 1) -> None:
        nonlocal stack
        stack += 1
        region("hipLaunchKernel", "HIP_RUNTIME_API", called_us, called_us + 8)
        add(
            "kernel_dispatch", **common, agent_id=agent, kernel_id=kernels[kernel], dispatch_id=stack, stream_id=stream,
            start=start_us * _US, end=end_us * _US, event_id=database.event("KERNEL_DISPATCH", stack),
        )  # fmt: skip

    at = 1_000_000
    for step in range(STEPS):
        forward = 3000 + (1500 if rank == 1 else 0) + step * 7 % 40
        begin = at
        stack += 1
        region("hipMemcpyAsync", "HIP_RUNTIME_API", at + 10, at + 20)
        add(
            "memory_copy", **common, start=(at + 30) * _US, end=(at + 330) * _US,
            name_id=database.text("MEMORY_COPY_HOST_TO_DEVICE"), size=4_000_000, stream_id=1,
            event_id=database.event("MEMORY_COPY", stack),
        )  # fmt: skip
        region("roctxRangePushA", "MARKER_CORE_API", at + 40, at + 90, "FORWARD")
        launch("Cijk_forward", at + 50, at + 400, at + 400 + forward)
        region("roctxRangePushA", "MARKER_CORE_API", at + 100, at + 150, "BACKWARD")
        launch("Cijk_backward", at + 110, at + 410 + forward, at + 6410 + forward)
        launch("ncclDevKernel_Generic_1", at + 160, at + 6420 + forward, at + 12500, stream=2)
        region("roctxRangePushA", "MARKER_CORE_API", at + 200, at + 240, "OPTIMIZER_STEP")
        launch("adam", at + 210, at + 12510, at + 12900)
        at += 13_000
        region("roctxRangePushA", "MARKER_CORE_API", begin, at, f"step {step}")
    database.close()


for number in range(2):
    make(number)
