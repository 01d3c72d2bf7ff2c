"""What negotiation costs at a scale that no desk has: the real coordinator and real messages, with simulated ranks.

    python benchmarks/control_plane.py                      # 1,024 ranks, 400 tensors; --json for programs

Every rank is a real `TensorTable`, every message is encoded and decoded as it would be for the wire; only the sockets are left
out.  One `Ready` a rank and step is what a training sends whose backward pass outlasts a cycle (HOROVOD_CYCLE_TIME);
`--messages 8` splits a step into eight.  The first step negotiates everything, the later ones repeat it.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch

from tlkit.runtime.core.control.coordinator import Coordinator, share_out
from tlkit.runtime.core.control.messages import Ready, Request, Work, decode, encode
from tlkit.runtime.core.control.tensor_table import TensorTable
from tlkit.runtime.core.kinds import Kind
from tlkit.runtime.core.work import Entry, Handle


def simulate(ranks: int, tensors: int, messages: int, steps: int) -> list[dict[str, Any]]:
    """One row a step: messages and bytes of all ranks together, time of the coordinator and of one rank."""
    everyone = tuple(range(ranks))
    coordinator = Coordinator({0: everyone}, fusion_threshold_nbytes=64 << 20, cache_capacity=1024)
    tensor = torch.zeros(25_000)
    requests = [Request(f"allreduce.layer{k}.weight", Kind.ALLREDUCE, "float32", (25_000,)) for k in range(tensors)]
    tables = [TensorTable() for _ in everyone]
    part = -(-tensors // messages)
    rows = []
    for step in range(steps):
        said: list[tuple[int, bytes]] = []
        rank_ns, read_ns, decide_ns, write_ns = 0, 0, 0, 0
        up = down = sent = 0
        for begin in range(0, tensors, part):
            said.clear()
            for rank in everyone:
                entries = [
                    Entry(request, tensor, tensor, Handle(lambda _: None), 0)
                    for request in requests[begin : begin + part]
                ]
                begun = time.perf_counter_ns()
                tables[rank].submit(entries)
                message = tables[rank].collect()
                assert message is not None
                said.append((rank, encode(message)))
                rank_ns += time.perf_counter_ns() - begun
            for rank, text in said:
                up += len(text)
                begun = time.perf_counter_ns()
                ready = decode(text)
                noted = time.perf_counter_ns()
                assert isinstance(ready, Ready)
                coordinator.receive(rank, ready, 0, 0)
                read_ns += noted - begun
                decide_ns += time.perf_counter_ns() - noted
            begun = time.perf_counter_ns()
            orders = coordinator.take()
            decided = time.perf_counter_ns()
            assert orders is not None
            works = share_out(orders, 0, everyone[1:])
            # Ranks that are told the same share one object, which is encoded once, as the service does.
            texts = {id(work): encode(work) for work in works.values()}
            write_ns += time.perf_counter_ns() - decided
            decide_ns += decided - begun
            for rank, work in works.items():
                text = texts[id(work)]
                down += len(text)
                sent += 2
                begun = time.perf_counter_ns()
                answer = decode(text)
                assert isinstance(answer, Work)
                tables[rank].receive(answer)
                rank_ns += time.perf_counter_ns() - begun
        rows.append(
            {
                "step": step,
                "messages": sent,
                "bytes_up_a_rank": up / ranks,
                "bytes_down_a_rank": down / ranks,
                "coordinator_ms": (read_ns + decide_ns + write_ns) / 1e6,
                "of_it_decode_ms": read_ns / 1e6,
                "of_it_decide_ms": decide_ns / 1e6,
                "of_it_encode_ms": write_ns / 1e6,
                "rank_ms": rank_ns / ranks / 1e6,
            }
        )
    return rows


def summarize(rows: list[dict[str, Any]], first: int) -> dict[str, Any]:
    """Medians of the steps from `first` on."""
    return {key: statistics.median(row[key] for row in rows[first:]) for key in rows[0] if key != "step"}


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024], help="(default 64 256 1024)")
    parser.add_argument("--tensors", type=int, nargs="+", default=[100, 400, 1600], help="(default 100 400 1600)")
    parser.add_argument("--messages", type=int, default=1, help="messages of a rank in a step (default 1)")
    parser.add_argument("--steps", type=int, default=12, help="steps (default 12)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    results = []
    cases = [(ranks, arguments.tensors[len(arguments.tensors) // 2]) for ranks in arguments.ranks]
    cases += [(arguments.ranks[-1], tensors) for tensors in arguments.tensors]
    for ranks, tensors in dict.fromkeys(cases):
        rows = simulate(ranks, tensors, arguments.messages, arguments.steps)
        case = {"ranks": ranks, "tensors": tensors, "first": summarize(rows[:1], 0), "steady": summarize(rows, 2)}
        results.append(case)
        if arguments.json:
            continue
        if len(results) == 1:
            print(
                f"{'ranks':>6} {'tensors':>8} {'step':>7} {'messages':>9} {'B up/rank':>10} {'B down/rank':>12}", end=""
            )
            print(f" {'coordinator ms':>15} {'(decode, decide, encode)':>26} {'rank ms':>8}")
        for name in ("first", "steady"):
            row = case[name]
            parts = ", ".join(f"{row[f'of_it_{part}_ms']:.2f}" for part in ("decode", "decide", "encode"))
            print(
                f"{ranks:6} {tensors:8} {name:>7} {row['messages']:9.0f} {row['bytes_up_a_rank']:10.1f} "
                f"{row['bytes_down_a_rank']:12.1f} {row['coordinator_ms']:15.2f} {parts:>26} {row['rank_ms']:8.3f}"
            )
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
