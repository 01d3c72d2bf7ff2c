"""What recording costs: step time with the timeline on against off, in turn, in one job.

    python benchmarks/recording.py            # two ranks: the samples' CNN and transformer, and 400 tiny tensors
    python benchmarks/recording.py --level steps --ranks 1 --pairs 200 --steps 10       # sums only, enough pairs to be sure

Both states alternate in blocks of steps, so that whatever else the machine does falls on both; a ratio is taken for every pair
of neighbouring blocks.  Off means HOROVOD_TIMELINE=DYNAMIC without a started timeline.  `--threads` tells to which thread the
time is added, by the kernel's own count of each.

A machine that others use makes steps longer, in processor time, too, and never shorter.  So beside the median of all pairs there
is the floor: what a step costs in the quietest tenth of the blocks, on against off.  Both come with an interval that holds the
true value 95 times of 100, from drawing as many pairs again: a ratio is proven where the whole interval is below it.  One
rank alone waits for nobody; of two the time for which they look for each other's bytes is counted, too.

Every block that is recorded is a recording of its own, and at the beginning of each the code is looked at six times as often as
later.  `--settled` leaves that out: it shows what a recording costs that has been on for longer than a quarter of a minute.

Where a share is smaller than what this resolves, `--model bare` has a step that is next to nothing but what is done once a step:
what is added to it in microseconds is added to the same rank's step of any model, as long as single tensors are not recorded.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("cnn", "transformer", "tiny")
CHOICES = (*MODELS, "bare")
#: Blocks that the machine left alone.
QUIET_SHARE = 0.1
RESAMPLES = 2000

REPOSITORY = Path(__file__).resolve().parent.parent


def build(name: str) -> tuple[Any, Any]:
    """A model with its input."""
    import torch  # noqa: PLC0415  only the ranks need it

    sys.path.insert(0, str(REPOSITORY / "samples"))
    torch.manual_seed(0)
    if name == "transformer":
        from train_transformer import Transformer  # noqa: PLC0415

        return Transformer(256, 32), torch.randint(256, (4, 32))
    if name == "cnn":
        from cnn import Network  # noqa: PLC0415

        return Network(), torch.randn(16, 3, 32, 32)
    if name == "bare":
        return torch.nn.Linear(1, 1), torch.randn(1, 1)

    class Tiny(torch.nn.Module):
        """400 tensors with next to nothing to compute: what a step costs is what is done for each tensor."""

        def __init__(self) -> None:
            super().__init__()
            self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(16)) for _ in range(400)])

        def forward(self, x: Any) -> Any:
            return sum((part * x).sum() for part in self.parts)

    return Tiny(), torch.randn(16)


def thread_seconds() -> Counter[str]:
    """CPU of this process's threads by their names; those that are not Python's together."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            ran_ns = int((task / "schedstat").read_text().split()[0])
            found[names.get(int(task.name), "not Python's")] += ran_ns / 1e9  # type: ignore[assignment]  # seconds count, too
    return found


def added_us(times: list[tuple[Any, Any]]) -> dict[str, float]:
    """Median microseconds a step that recording adds to each thread."""
    threads = sorted({name for pair in times for _, _, of_thread in pair for name in of_thread})
    added = {
        name: statistics.median(on.get(name, 0.0) - off.get(name, 0.0) for (_, _, off), (_, _, on) in times)
        for name in threads
    }
    return {name: round(1e6 * seconds, 1) for name, seconds in added.items()}


def interval(
    pairs: list[tuple[float, float]], figure: Callable[[np.ndarray], float], resamples: int = RESAMPLES
) -> list[float]:
    """Between which bounds a figure lies, 95 times of 100: bootstrap over the pairs.

    Args:
        pairs: off and on of each.
        figure: of float[pair, 2].
    """
    table = np.array(pairs)
    dice = np.random.default_rng(1)
    drawn = [figure(table[dice.integers(0, len(table), len(table))]) for _ in range(resamples)]
    return [round(float(bound), 4) for bound in np.quantile(drawn, [0.025, 0.975])]


def median_ratio(table: np.ndarray) -> float:
    """The median of the pairs' ratios."""
    return float(np.median(table[:, 1] / table[:, 0]))


def floor_ratio(table: np.ndarray) -> float:
    """What the quietest tenth of the blocks costs, on against off."""
    off, on = np.quantile(table, QUIET_SHARE, axis=0)
    return float(on / off)


def median_added_us(table: np.ndarray) -> float:
    """The median of the pairs' differences, from seconds."""
    return 1e6 * float(np.median(table[:, 1] - table[:, 0]))


def floor_added_us(table: np.ndarray) -> float:
    """What the quietest tenth of the blocks costs more, from seconds."""
    off, on = np.quantile(table, QUIET_SHARE, axis=0)
    return 1e6 * float(on - off)


def rank_main(name: str, pairs: int, steps: int, folder: str, *, is_settled: bool) -> None:
    """One rank: blocks of steps with the timeline off and on in turn; rank 0 prints the times."""
    import torch  # noqa: PLC0415

    import tlkit.runtime.torch as hvd  # noqa: PLC0415
    from tlkit.runtime.instrument.code import ticker  # noqa: PLC0415

    if is_settled:
        ticker.OFTEN_COUNT = 0  # type: ignore[misc]  # of every recording, not only after a while
    hvd.init()
    torch.set_num_threads(1)
    model, data = build(name)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def train(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            model(data).float().square().mean().backward()
            optimizer.step()

    def block() -> tuple[float, float, dict[str, float]]:
        """Wall and CPU seconds of a step; CPU of all threads of this rank, the timeline's writer included, and of each."""
        # What happens once a timeline (opening it, the first sight of each tensor) is no cost of a step.
        train(2)
        hvd.barrier()
        begun, begun_cpu, begun_threads = time.perf_counter(), time.process_time(), thread_seconds()
        train(steps)
        wall, cpu, threads = time.perf_counter() - begun, time.process_time() - begun_cpu, thread_seconds()
        return wall / steps, cpu / steps, {name: (threads[name] - begun_threads[name]) / steps for name in threads}

    block()
    times: list[tuple[Any, Any]] = []
    for pair in range(pairs):
        measured = {}
        # The order changes from pair to pair, so that a drift of the machine's speed cancels.
        for on in (False, True) if pair % 2 else (True, False):
            if on:
                hvd.start_timeline(f"{folder}/{pair}.json")
            measured[on] = block()
            if on:
                hvd.stop_timeline()
        times.append((measured[False], measured[True]))
    if hvd.rank() == 0:
        print("RESULT " + json.dumps({"times": times, "tensors": len(list(model.parameters()))}), flush=True)


def measure(name: str, pairs: int, steps: int, ranks: int, level: str, *, is_settled: bool) -> dict[str, Any]:
    """Run the job for one model and sum it up."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--rank", "--model", name, "--pairs", str(pairs), "--steps", str(steps), "--folder", folder]
        arguments += ["--settled"] if is_settled else []
        launcher = [sys.executable, "-m", "tlkit.runtime.launch.cli", "-np", str(ranks)]
        environment = {**os.environ, "HOROVOD_TIMELINE": "DYNAMIC", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [*launcher, sys.executable, __file__, *arguments],
            env=environment | ({"HOROVOD_TIMELINE_LEVEL": level} if level == "steps" else {}),
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
        if not lines:
            raise SystemExit(done.stdout + done.stderr)
        result = json.loads(lines[0].partition("RESULT ")[2])
        texts = [path.read_bytes() for path in Path(folder).iterdir()]
    wall = [on[0] / off[0] for off, on in result["times"]]
    cpu = [on[1] / off[1] for off, on in result["times"]]
    cpu_pairs = [(off[1], on[1]) for off, on in result["times"]]
    events = sum(text.count(b"\n") - 2 for text in texts)
    return {
        "model": name,
        "tensors": result["tensors"],
        "off_ms": round(1e3 * statistics.median(off[0] for off, _ in result["times"]), 2),
        "on_ms": round(1e3 * statistics.median(on[0] for _, on in result["times"]), 2),
        "wall_ratio": round(statistics.median(wall), 4),
        "wall_quartiles": [round(bound, 4) for bound in statistics.quantiles(wall, n=4)[::2]],
        "cpu_ratio": round(statistics.median(cpu), 4),
        "cpu_quartiles": [round(bound, 4) for bound in statistics.quantiles(cpu, n=4)[::2]],
        "cpu": {
            statistic.__name__: {
                "is": round(statistic(np.array(cpu_pairs)), 4),
                "interval": interval(cpu_pairs, statistic),
            }
            for statistic in (median_ratio, floor_ratio, median_added_us, floor_added_us)
        },
        "added_us": added_us(result["times"]),
        "bytes_per_event": round(sum(map(len, texts)) / events, 1),
        "events_per_step_and_rank": round(events / (ranks * pairs * (steps + 2))),
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=CHOICES, help="only this model")
    parser.add_argument("--pairs", type=int, default=25, help="pairs of blocks (default 25)")
    parser.add_argument("--steps", type=int, default=20, help="steps in a block (default 20)")
    parser.add_argument("--ranks", type=int, default=2, help="ranks (default 2)")
    parser.add_argument("--level", choices=("all", "steps"), default="all", help="steps: HOROVOD_TIMELINE_LEVEL=steps")
    parser.add_argument("--settled", action="store_true", help="look at the code as seldom as after a while")
    parser.add_argument("--threads", action="store_true", help="print what is added to which thread")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        rank_main(arguments.model, arguments.pairs, arguments.steps, arguments.folder, is_settled=arguments.settled)
        return
    models = [arguments.model] if arguments.model else list(MODELS)
    settings = (arguments.pairs, arguments.steps, arguments.ranks, arguments.level)
    rows = [measure(name, *settings, is_settled=arguments.settled) for name in models]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        "model        tensors  off ms   on ms  wall on/off (quartiles)    CPU on/off (quartiles)     bytes/event  events/step"
    )
    for row in rows:
        ratios = "  ".join(
            f"{row[f'{kind}_ratio']:.3f} ({row[f'{kind}_quartiles'][0]:.3f} to {row[f'{kind}_quartiles'][1]:.3f})"
            for kind in ("wall", "cpu")
        )
        print(
            f"{row['model']:12} {row['tensors']:7} {row['off_ms']:7} {row['on_ms']:7}  {ratios}  "
            f"{row['bytes_per_event']:11} {row['events_per_step_and_rank']:12}"
        )
        for name, found in row["cpu"].items():
            print(f"  CPU, {name}: {found['is']:.4g} (95 %: {found['interval'][0]:.4g} to {found['interval'][1]:.4g})")
        if arguments.threads:
            print("  " + ", ".join(f"{name} {added:+} us a step" for name, added in row["added_us"].items()))


if __name__ == "__main__":
    main()
