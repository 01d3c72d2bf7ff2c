"""What a timeline of Horovod's shows of the gradients: tensors, order, links, ranks, and calls between them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tlkit.collector import analyze
from tlkit.collector.findings import Finding

STEP_US = 100_000


@dataclass(frozen=True)
class Asked:
    """A tensor in a step; times in µs from its begin."""

    name: str
    nbytes: int
    asked: int
    takes: int
    waits: int = 300
    late: dict[int, int] = field(default_factory=dict)
    """Ranks that ask so much later than the first."""


Step = Callable[[int], Sequence[Asked]]


def timeline(folder: Path, step: Step, *, steps: int = 40, ranks: int = 0) -> Path:
    """A file as Horovod writes it: one collective after the other, with ticks of `ranks` ranks."""
    events: list[dict[str, object]] = []
    pids: dict[str, int] = {}
    for number in range(steps):
        free = begin = 1_000_000 + number * STEP_US
        for tensor in step(number):
            pid = pids.setdefault(tensor.name, len(pids) + 1)
            asked = begin + tensor.asked
            agreed = asked + max(tensor.waits, *tensor.late.values(), 0)
            start = max(agreed, free) + 20
            free = start + tensor.takes
            events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": asked, "pid": pid})
            for rank in range(ranks):
                at = asked + tensor.late.get(rank, 0)
                events.append({"ph": "X", "name": str(rank), "ts": at, "pid": pid, "dur": 0})
            shape = {"dtype": "float32", "shape": f"[{tensor.nbytes // 4}]"}
            events += [
                {"ph": "E", "ts": agreed, "pid": pid},
                {"ph": "B", "name": "ALLREDUCE", "ts": start, "pid": pid},
                {"ph": "B", "name": "GLOO_ALLREDUCE", "ts": start, "pid": pid},
                {"ph": "E", "ts": free, "pid": pid},
                {"ph": "E", "ts": free, "pid": pid, "args": shape},
            ]
    names = [
        {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"allreduce.{name}"}}
        for name, pid in pids.items()
    ]
    first = {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000},
    }
    path = folder / "h.json"
    path.write_text(json.dumps([first, *names, *events]))
    return path


def first_of(path: Path) -> Finding:
    found = analyze(path).findings[0]
    low, high = found.gain_interval
    assert low <= found.predicted_gain <= high
    return found


def layers(count: int = 6, *, begin: int = 20_000, apart: int = 6_000, takes: int = 500) -> list[Asked]:
    return [Asked(f"layers.{at}.weight", 200_000, begin + at * apart, takes) for at in range(count)]


def test_a_tensor_that_outweighs_all_costs_what_is_exposed_of_it(tmp_path: Path) -> None:
    """Its 40 ms begin 10 ms before the last gradient is asked for: without it steps end 30 ms sooner, and not 40."""
    small = layers()
    huge = Asked("head.weight", 40_000_000, small[-1].asked - 10_000, 40_000)
    tensors = sorted([*small, huge], key=lambda tensor: tensor.asked)

    found = first_of(timeline(tmp_path, lambda _: tensors))

    assert (found.class_, found.cause) == ("communication", "oversize-gradient")
    assert "head.weight has 97% of all reduced bytes" in found.sentence
    assert found.predicted_gain == pytest.approx(0.308, abs=0.01)


def test_bytes_that_are_asked_for_last_could_hide_behind_the_rest(tmp_path: Path) -> None:
    """Three of 3 MB at the end of a backward of 30 ms, which has 27 ms left to hide their 24 ms."""
    late = [Asked(f"embedding.{at}.weight", 3_000_000, 50_000 + at * 100, 8_000) for at in range(3)]

    found = first_of(timeline(tmp_path, lambda _: [*layers(), *late]))

    assert (found.class_, found.cause) == ("communication", "late-gradients")
    assert found.predicted_gain == pytest.approx(0.24, abs=0.02)


def test_calls_one_after_the_other_are_waited_for(tmp_path: Path) -> None:
    """Twelve numbers of no name, each asked for 0.1 ms after the one before: 20 ms that need not be."""
    calls = [Asked(f"noname.{at}", 4, 70_000 + at * 1_720, 1_300) for at in range(12)]

    found = first_of(timeline(tmp_path, lambda _: [*layers(), *calls]))

    assert (found.class_, found.cause) == ("communication", "blocking-calls")
    assert "12 collectives a step" in found.sentence
    assert found.predicted_gain == pytest.approx(12 * 1.72 / 100, abs=0.01)


def test_small_gradients_that_come_one_by_one_are_no_calls(tmp_path: Path) -> None:
    """Each has been reduced before the next one is ready, which asks for it when it is, and not when that has ended."""

    def step(number: int) -> list[Asked]:
        return [
            Asked(f"layers.{at}.weight", 1_000, 20_000 + at * 4_000 + 97 * ((number * 7 + at * 5) % 11), 900)
            for at in range(12)
        ]

    assert not [found for found in analyze(timeline(tmp_path, step)).findings if found.cause == "blocking-calls"]


def test_all_late_ranks_are_named(tmp_path: Path) -> None:
    """Ranks 1 and 3 of eight ask 30 ms late in every fifth step, sometimes the one last, sometimes the other."""

    def step(number: int) -> list[Asked]:
        late = {1: 30_000 + number % 3 * 500, 3: 30_000 + number % 2 * 700} if number % 5 == 4 else {}
        return [
            Asked(tensor.name, tensor.nbytes, tensor.asked, tensor.takes, late=late | {2: 40 * (number % 4)})
            for tensor in layers(apart=300)
        ]

    found = first_of(timeline(tmp_path, step, ranks=8))

    assert (found.class_, found.cause, found.ranks) == ("straggler", "late-in-some-steps", (1, 3))
    assert "in every 5th step" in found.sentence


def test_ranks_that_are_late_in_turn_are_named(tmp_path: Path) -> None:
    """Rank 0 in the even steps, rank 2 in the odd ones: somebody is late always."""

    def step(number: int) -> list[Asked]:
        late = {number % 2 * 2: 25_000, 1: 60 * (number % 3), 3: 50 * (number % 5)}
        return [
            Asked(tensor.name, tensor.nbytes, tensor.asked, tensor.takes, late=late) for tensor in layers(apart=300)
        ]

    found = first_of(timeline(tmp_path, step, ranks=4))

    assert (found.class_, found.cause, found.ranks) == ("straggler", "late-rank", (0, 2))
    assert found.predicted_gain == pytest.approx(0.25, abs=0.02)


def test_a_link_of_less_than_a_gigabit_is_slow(tmp_path: Path) -> None:
    """Five tensors of 500 kB, 10 ms each less a latency: 52 MB/s."""
    tensors = [Asked(f"layers.{at}.weight", 500_000 + at * 4_000, 20_000 + at * 500, 10_000) for at in range(5)]

    found = first_of(timeline(tmp_path, lambda _: tensors, ranks=2))

    assert (found.class_, found.cause) == ("communication", "slow-link")
    assert "Bytes move at 52 MB/s" in found.sentence
    assert found.predicted_gain == pytest.approx(0.46, abs=0.03)


def test_messages_that_take_long_are_no_late_rank(tmp_path: Path) -> None:
    """To agree takes 8 ms and a collective of any size as long: a far network does that, and no rank."""
    tensors = [Asked(f"layers.{at}.weight", 1_000 << at, 10_000 + at * 10, 8_000 + at, waits=8_000) for at in range(4)]

    analysis = analyze(timeline(tmp_path, lambda _: tensors))
    found = analysis.findings[0]

    assert (found.class_, found.cause) == ("communication", "high-latency")
    assert "ranks need as long to agree" in found.sentence
    assert not [one for one in analysis.findings if one.class_ == "straggler"]
