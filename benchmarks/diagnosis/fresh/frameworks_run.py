"""What the scripts with TensorFlow, Keras and JAX have beside their training: the command line, and a clock of its own.

HOROVOD_TIMELINE=t.json tl-run -np 2 python pressed_flowers.py --faulty
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# One thread for the arithmetic of a rank, as ranks.py gives torch; the frameworks look when they begin to compute.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


class Run:
    """One rank of a training; `ends_ns` holds when each step ended, its first entry when the first began."""

    def __init__(self, hvd: Any) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=60)
        parser.add_argument("--faulty", action="store_true", help="train with what is wrong in this script")
        parser.add_argument("--times", type=Path, help="a folder: write there when each step ended")
        args = parser.parse_args()
        hvd.init()
        self.hvd, self.rank, self.size = hvd, int(hvd.rank()), int(hvd.size())
        self.is_faulty: bool = args.faulty
        self.steps: int = args.steps
        self.times: Path | None = args.times
        self.step = 0
        self.ends_ns: list[int] = []

    def tick(self) -> None:
        """A step has ended, or the first begins."""
        self.ends_ns.append(time.monotonic_ns())

    def batches(self, source: Iterable[Any]) -> Iterator[Any]:
        """The batches of a source, until all steps are done; a step ends when the next batch is asked for."""
        self.tick()
        for batch in source:
            self.step += 1
            yield batch
            self.tick()
            if self.step >= self.steps:
                break

    def clock(self) -> Any:
        """A callback for Keras's `fit`."""
        import keras  # noqa: PLC0415  the others go without

        def on_train_begin(logs: Any) -> None:  # noqa: ARG001  a callback's signature
            self.tick()

        def on_train_batch_end(batch: int, logs: Any) -> None:  # noqa: ARG001  a callback's signature
            self.tick()

        return keras.callbacks.LambdaCallback(on_train_begin=on_train_begin, on_train_batch_end=on_train_batch_end)

    def close(self) -> None:
        """The end of the training."""
        if self.times is not None:
            path = self.times / f"times.rank{self.rank}.json"
            path.write_text(json.dumps({"rank": self.rank, "ends_ns": self.ends_ns}), encoding="utf-8")
        if hasattr(self.hvd, "barrier"):
            self.hvd.barrier()
        self.hvd.shutdown()
