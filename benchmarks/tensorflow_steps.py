"""How long a training step takes in TensorFlow: ours against MultiWorkerMirroredStrategy, alone, and recorded.

    python benchmarks/tensorflow_steps.py            # two ranks; --json for programs

All jobs run at the same time and train in turn, a few steps each (`jobs.py`); a ratio is taken for every round.  `fit` is Keras's
own loop, which does not train with that strategy on several workers.  `recorded` is a job through shared memory with its timeline
on, against itself with the timeline off.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from jobs import Job, serve, spread

#: Layers, their width, and the rows of a batch: 60 variables of 1 MB, 8 variables of 17 MB.
MODELS = {"small": (30, 92, 32), "wide": (4, 1024, 32)}
#: By peer: its kind, whether mpirun starts it, ranks, environment.
PEERS: dict[str, tuple[str, bool, int, dict[str, str]]] = {
    "tape, shm": ("tape", False, 2, {"HOROVOD_CPU_OPERATIONS": "shm"}),
    "tape, mpi": ("tape", True, 2, {"HOROVOD_CPU_OPERATIONS": "mpi"}),
    "tape, gloo": ("tape", False, 2, {"HOROVOD_CPU_OPERATIONS": "gloo"}),
    "tape, 4 groups": ("groups", False, 2, {"HOROVOD_CPU_OPERATIONS": "shm"}),
    "strategy": ("strategy", False, 2, {}),
    "alone": ("alone", False, 1, {}),
    "fit, shm": ("fit", False, 2, {"HOROVOD_CPU_OPERATIONS": "shm"}),
    "fit, alone": ("fit alone", False, 1, {}),
    "off": ("tape", False, 2, {"HOROVOD_CPU_OPERATIONS": "shm", "HOROVOD_TIMELINE": "DYNAMIC"}),
}
#: What each is compared with.
AGAINST = {
    "tape, shm": "strategy",
    "tape, mpi": "strategy",
    "tape, gloo": "strategy",
    "tape, 4 groups": "tape, shm",
    "strategy": "alone",
    "fit, shm": "fit, alone",
    "recorded": "off",
}


def build(name: str) -> tuple[Any, Any]:
    """A model, and a batch."""
    import keras  # noqa: PLC0415  only the ranks need it
    import numpy as np  # noqa: PLC0415

    layers, width, rows = MODELS[name]
    keras.utils.set_random_seed(0)
    dense = [keras.layers.Dense(width, activation="relu") for _ in range(layers)]
    model = keras.Sequential([keras.Input((width,)), *dense])
    return model, np.random.default_rng(0).normal(size=(rows, width)).astype("float32")


def make_step(name: str, kind: str, addresses: list[str]) -> Callable[[], Any]:
    """A step that is one tf.function."""
    rank = int(os.environ.get("HOROVOD_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)
    if kind == "strategy":
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        )
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if kind == "strategy" else tf.distribute.get_strategy()
    wrap: Callable[[Any], Any] = lambda tape: tape  # noqa: E731  one of two
    if kind in {"tape", "groups"}:
        import horovod.tensorflow as hvd  # noqa: PLC0415

        hvd.init()
        wrap = lambda tape: hvd.DistributedGradientTape(tape, num_groups=4 if kind == "groups" else 0)  # noqa: E731
    with strategy.scope():
        model, batch = build(name)
        optimizer = keras.optimizers.SGD(1e-4)
        optimizer.build(model.trainable_variables)
    data = tf.constant(batch)

    def replica() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(data, training=True) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(wrap(tape).gradient(loss, variables), variables, strict=True))
        return loss

    if kind == "strategy":
        return tf.function(lambda: strategy.run(replica), jit_compile=False)  # type: ignore[no-any-return]
    return tf.function(replica, jit_compile=False)  # type: ignore[no-any-return]


def make_fit(name: str, kind: str) -> Callable[[int], Any]:
    """Keras's `fit`, of so many steps."""
    import keras  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    model, batch = build(name)
    optimizer = keras.optimizers.SGD(1e-4)
    if kind == "fit":
        import horovod.keras as hvd  # noqa: PLC0415

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer, loss="mse", jit_compile=False)
    rows = tf.data.Dataset.from_tensors((batch, batch)).cache().repeat()
    return lambda steps: model.fit(rows, steps_per_epoch=steps, verbose=0)


def rank_main(name: str, kind: str, addresses: list[str]) -> None:
    """One rank of one job."""
    if kind.startswith("fit"):
        fit = make_fit(name, kind)
        serve(lambda what: timed(lambda: fit(what["steps"]), what["steps"]))
        return
    step = make_step(name, kind, addresses)

    def train(what: dict[str, Any]) -> float:
        steps = what["steps"]
        if what.get("timeline"):
            import tlkit.runtime.tensorflow as hvd  # noqa: PLC0415

            hvd.start_timeline(what["timeline"])
            step()  # opening it is no cost of a step
        took = timed(lambda: [step() for _ in range(steps)], steps)
        if what.get("timeline"):
            hvd.stop_timeline()
        return took

    serve(train)


def timed(work: Callable[[], Any], steps: int) -> float:
    """Seconds of a step."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) / steps


def free_addresses(count: int) -> list[str]:
    """Of this host, with ports that are free now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    return found


def measure(name: str, peers: list[str], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Step times of all peers on one model."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "KERAS_BACKEND": "tensorflow"}
    jobs = []
    times: dict[str, list[float]] = {}
    try:
        for peer in peers:
            kind, mpi, ranks, environment = PEERS[peer]
            arguments = ["--rank", "--model", name, "--kind", kind, "--addresses", *free_addresses(ranks)]
            jobs.append(Job(peer, [str(Path(__file__)), *arguments], ranks, mpi=mpi, environment=quiet | environment))
        with tempfile.TemporaryDirectory() as folder:
            for number in range(rounds + 2):
                for job in jobs[number % len(jobs) :] + jobs[: number % len(jobs)]:
                    states = ["off", "recorded"] if job.name == "off" else [job.name]
                    for state in states if number % 2 else reversed(states):
                        path = f"{folder}/{number}.json" if state == "recorded" else ""
                        took = max(job.work({"steps": steps, "timeline": path}))
                        if number >= 2:
                            times.setdefault(state, []).append(took)
    finally:
        for job in jobs:
            job.end()
    return [row(name, peer, times) for peer in times]


def row(name: str, peer: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """One line of the table."""
    took = times[peer]
    median, low, high = spread([1e3 * value for value in took])
    found: dict[str, Any] = {"model": name, "peer": peer, "median_ms": round(median, 2)}
    found["quartiles_ms"] = [round(low, 2), round(high, 2)]
    other = AGAINST.get(peer)
    if other in times:
        ratio, ratio_low, ratio_high = spread([a / b for a, b in zip(took, times[other], strict=True)])
        found |= {"against": other, "ratio": round(ratio, 3), "quartiles": [round(ratio_low, 3), round(ratio_high, 3)]}
    return found


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, help="only this model")
    parser.add_argument("--peer", choices=PEERS, action="append", help="only this peer; may be repeated")
    parser.add_argument("--rounds", type=int, default=25, help="rounds (default 25)")
    parser.add_argument("--steps", type=int, default=8, help="steps a round and job (default 8)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", nargs="*", default=[], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(arguments.model, arguments.kind, arguments.addresses)
        return
    peers = arguments.peer or list(PEERS)
    rows = [
        one
        for name in ([arguments.model] if arguments.model else MODELS)
        for one in measure(name, peers, arguments.rounds, arguments.steps)
    ]
    load = statistics.fmean(os.getloadavg())
    if arguments.json:
        print(json.dumps({"load": load, "rows": rows}, indent=2))
        return
    print(f"load of the machine {load:.1f} on {os.cpu_count()} cores")
    print(f"{'model':8} {'':16} {'ms (quartiles)':>26}   ratio (quartiles)")
    for one in rows:
        low, high = one["quartiles_ms"]
        line = f"{one['model']:8} {one['peer']:16} {one['median_ms']:.1f} ({low:.1f} to {high:.1f})".ljust(52)
        if "ratio" in one:
            line += (
                f"   {one['ratio']:.2f} ({one['quartiles'][0]:.2f} to {one['quartiles'][1]:.2f}) of {one['against']}"
            )
        print(line)


if __name__ == "__main__":
    main()
