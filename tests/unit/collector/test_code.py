"""Which lines of the user's code the parts of a step are spent in."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.traces import MS, make_trace, uniform
from tlkit.collector import Analysis, analyze
from tlkit.collector.model.breakdown import PARTS
from tlkit.collector.model.code import CodeLooks, Place
from tlkit.collector.reports.summary import summarize
from tlkit.timeline.model.code_spans import LOOK_NS, CodeSpan
from tlkit.timeline.model.columns import TableBuilder
from tlkit.timeline.model.trace import COLLECTIVE_COLUMNS, COUNTER_COLUMNS, SPAN_COLUMNS, Trace, make_table
from tlkit.timeline.vocabulary import LOSS_COUNTER

from .test_diagnosis import HEALTHY, jittered
from .test_rules import best

STEPS = 40
Line = str
Seen = Callable[[str], Line]


def looked_at(
    trace: Trace,
    seen: Mapping[int, Seen],
    *,
    text: bytes = b'{"text":"x = slow(x)"}',
    every_ms: int = 7,
    input_function: str = "",
) -> Trace:
    """With a look every few milliseconds, at what `seen` tells of each rank by the part that is under way; `text` is the args of own lines.

    Looks in `input_function` are at the making of a batch.
    """
    rows: dict[str, list[object]] = {name: [] for name in SPAN_COLUMNS}
    spans = trace.spans[trace.spans["lane_kind"].isin(["compute", "data loading"])]
    for rank, tell in seen.items():
        mine = spans[spans["rank"] == rank]
        starts, ends = mine["start_ns"].to_numpy(), (mine["start_ns"] + mine["dur_ns"]).to_numpy()
        for at in range(every_ms * MS, int(ends.max()), every_ms * MS):
            under = np.flatnonzero((starts <= at) & (at < ends))
            part = str(mine["category"].iloc[under[-1]]) if len(under) else "other"
            name = tell(part)
            row = -1 if name.endswith(")") else len(trace.raw_args)
            category = "data" if input_function and name.endswith(f" {input_function}") else "other"
            values = (rank, "code", "code", category, name, at, LOOK_NS, row)
            for column, value in zip(SPAN_COLUMNS, values, strict=True):
                rows[column].append(value)
    every = pd.concat([trace.spans.astype({"name": "object"}), pd.DataFrame(rows)], ignore_index=True)
    every = every.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)
    table = make_table(SPAN_COLUMNS, {name: every[name].to_numpy() for name in SPAN_COLUMNS})
    return replace(trace, spans=table, raw_args=[*trace.raw_args, text])


def in_loop(part: str) -> Line:
    """The loop's own code calls a function of the user's; all else is the framework's."""
    return "train.py:57 augment" if part == "other" else "train.py:80 <module> (in torch)"


def run(parts: Mapping[str, float], seen: Seen) -> Analysis:
    """Two ranks whose steps have parts (ms) that are not as usual."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | dict(parts))))
    return analyze(looked_at(trace, dict.fromkeys(range(2), seen)))


def test_code_of_the_loop_has_a_line() -> None:
    """In words, in the evidence, and in the table of lines."""
    analysis = run({"host": 90}, in_loop)
    finding = best(analysis, "host-code")

    assert "at train.py:57, in augment(): x = slow(x)." in finding.sentence
    assert finding.evidence["code"]["lines"] == [57, 57]
    first = summarize(analysis).code[0]
    others = float(analysis.facts.part("other").mean())
    assert (first.line, first.function, first.part) == ("train.py:57", "augment()", "other")
    assert first.place.mean_ns == pytest.approx(others, rel=0.01)


class Every:
    """Of so many looks at the loop's code the last is at another function."""

    def __init__(self, count: int) -> None:
        self.count, self.looks = count, 0

    def __call__(self, part: str) -> Line:
        if part != "other":
            return "train.py:80 <module> (in torch)"
        self.looks += 1
        return "train.py:33 write_log" if self.looks % self.count == 0 else "train.py:57 augment"


@pytest.mark.parametrize(
    ("every", "causes"),
    [
        (100, {"batches-made-in-loop": 1.0}),
        (2, {"batches-made-in-loop": 0.5, "host-code": 0.5}),
        (1, {"host-code": 1.0}),
    ],
)
def test_batches_that_the_loop_makes_are_data(every: int, causes: Mapping[str, float]) -> None:
    """Each has its share of the loop's own code."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"host": 90})))
    analysis = analyze(looked_at(trace, {rank: Every(every) for rank in range(2)}, input_function="augment"))
    found = {f.cause: f for f in analysis.findings if f.cause in {"batches-made-in-loop", "host-code"}}
    others = float(analysis.facts.part("other").mean())

    assert {cause: round(f.evidence["mean_ns"] / others, 1) for cause, f in found.items()} == causes
    if "batches-made-in-loop" in found:
        data = found["batches-made-in-loop"]
        assert data.class_ == "data"
        assert "at train.py:57, in augment(): x = slow(x)" in data.sentence
        assert "DataLoader(num_workers=" in data.remedy


@pytest.mark.parametrize(
    ("framework", "line", "is_told"),
    [
        ("jax", "train.py:80 <module> (in jax)", False),  # where its forward pass is as well
        ("jax", "train.py:57 augment (in jax)", True),
        ("jax", "train.py:80 <module>", True),
        ("torch", "train.py:80 <module> (in jax)", True),
    ],
)
def test_the_call_of_a_compiled_step_is_no_code_of_the_loop(framework: str, line: str, *, is_told: bool) -> None:
    """What it does before forward and behind the update has no marks of its own."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"host": 90})))
    trace = replace(trace, meta=replace(trace.meta, framework=framework))

    def seen(part: str) -> Line:
        return line if part == "other" else "train.py:80 <module> (in jax)"

    found = {finding.cause for finding in analyze(looked_at(trace, dict.fromkeys(range(2), seen))).findings}

    assert ("host-code" in found) == is_told


@pytest.mark.parametrize(("loss_percent", "is_told"), [(0, True), (45, False)])
def test_a_loss_of_the_script_s_own_is_no_code_of_the_loop(loss_percent: int, *, is_told: bool) -> None:
    """What it takes of backward, 27 of 60 ms, it takes of the loop before that."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"host": 30})))
    counters = TableBuilder(COUNTER_COLUMNS)
    for rank in range(2):
        counters.add(rank, LOSS_COUNTER, 0, float(loss_percent))
    found = {finding.cause for finding in analyze(replace(trace, counters=counters.finish())).findings}

    assert ("host-code" in found) == is_told


def test_a_group_that_is_taken_apart_where_the_next_one_is_made() -> None:
    """40 ms of the line that makes it, beside the 5 ms that ranks wait in the call: no code of the loop."""
    parts = [*[*HEALTHY.items()][:-1], ("wait:collective", 5.0), ("host", 42.0)]
    made = make_trace([[parts] * STEPS] * 2, nbytes=0, tensors_per_collective=1)
    of_group = made.collectives["seq"].to_numpy() % 2 == 1
    columns = {name: made.collectives[name].to_numpy() for name in COLLECTIVE_COLUMNS} | {
        "kind": np.where(of_group, "barrier", "allreduce"),
        "caller": np.where(of_group, "group", "gradient"),
        "where": np.where(of_group, "train.py:57", ""),
        "blocking": of_group.astype(np.int64),
    }
    trace = replace(made, collectives=make_table(COLLECTIVE_COLUMNS, columns))
    analysis = analyze(looked_at(trace, dict.fromkeys(range(2), in_loop)))

    assert analysis.verdict.cause == "process-groups-made"
    assert analysis.verdict.predicted_gain == pytest.approx(47 / 142.5, abs=0.03)
    assert "host-code" not in {finding.cause for finding in analysis.findings}


@pytest.mark.parametrize(("framework", "is_told"), [("jax", True), ("keras", False)])
def test_a_line_that_calls_operations_one_by_one_is_code_of_the_loop(framework: str, *, is_told: bool) -> None:
    """A fifth of it is while the step before is computed; of Keras's fit() everything is."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"forward": 10, "host": 150})))
    trace = replace(trace, meta=replace(trace.meta, framework=framework))
    update = "train.py:90 update (in jax)"

    def seen(part: str) -> Line:
        return update if part in {"other", "forward"} else "train.py:80 <module> (in jax)"

    found = {finding.cause for finding in analyze(looked_at(trace, dict.fromkeys(range(2), seen))).findings}

    assert ("host-code" in found) == is_told


@pytest.mark.parametrize("framework", ["jax", "torch"])
def test_a_compiled_loop_without_gradients_cannot_be_told(framework: str) -> None:
    """None of its parts was recorded: the loop's own code is not all that is left."""
    trace = make_trace(jittered(uniform(2, STEPS, {"host": 90.0, "wait:collective": 2.0})))
    trace = replace(trace, meta=replace(trace.meta, framework=framework))

    assert ("host-code" in {finding.cause for finding in analyze(trace).findings}) == (framework == "torch")


def test_what_other_ranks_do_as_well_is_not_the_slow_ones() -> None:
    """The line that only the slow rank spends its time at is named."""

    class Alternating:
        count = 0

        def __call__(self, part: str) -> Line:
            self.count += 1
            return "train.py:12 log" if part == "other" and self.count % 3 else in_loop(part)

    steps = [uniform(1, STEPS, HEALTHY | {"host": other})[0] for other in (30, 90)]
    steps = jittered(steps)
    analysis = analyze(looked_at(make_trace(steps), {0: in_loop, 1: Alternating()}, every_ms=3))
    finding = best(analysis, "slow-host-code")

    assert finding.ranks == (1,)
    assert "train.py:12, in log()" in finding.sentence


def test_a_hook_in_backward_is_named() -> None:
    """By its function, with what it takes; not the line that called backward."""

    class Hooked:
        count = 0

        def __call__(self, part: str) -> Line:
            self.count += 1
            return f"model.py:{20 + self.count % 3} clip" if part == "backward" and self.count % 2 else in_loop("")

    analysis = run({"backward": 100}, Hooked())
    finding = best(analysis, "code-in-backward")
    half = float(analysis.facts.part("backward").mean()) / 2

    assert "clip() in model.py" in finding.sentence
    assert finding.evidence["by_function_ns"]["model.py clip"] == pytest.approx(half, rel=0.1)
    assert finding.predicted_gain == pytest.approx(half / analysis.facts.mean_step_ns, abs=0.05)


@pytest.mark.parametrize(
    ("times", "is_told"), [(8192, True), (1800, False), (0, False)], ids=["tiny", "long enough", "not counted"]
)
def test_a_loop_of_python_is_what_runs_often_and_does_little(times: int, is_told: bool) -> None:
    """What a line takes each time tells a loop over single numbers from one over layers."""

    def seen(part: str) -> Line:
        return "model.py:14 forward" if part == "forward" else in_loop("")

    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"forward": 80})))
    text = b'{"text":"mask[row, column] = 0","times":%d}' % times
    analysis = analyze(looked_at(trace, dict.fromkeys(range(2), seen), text=text))
    found = [finding for finding in analysis.findings if finding.cause == "python-loop"]

    assert bool(found) == is_told
    if found:
        where = "model.py:14, in forward(), 8,192 times a step: mask[row, column] = 0"
        assert where in found[0].sentence
        assert found[0].predicted_gain == pytest.approx(80 / (analysis.facts.mean_step_ns / MS), abs=0.03)


@pytest.mark.parametrize(
    ("library", "is_told"), [("torch._tensor_str", True), ("numpy", True), ("transformers", False)]
)
def test_libraries_of_the_host_in_the_model_are_named(library: str, *, is_told: bool) -> None:
    """With the line that calls them; a library whose innermost code hands work to PyTorch is none."""

    class Half:
        count = 0

        def __call__(self, part: str) -> Line:
            self.count += 1
            return f"model.py:31 forward (in {library})" if part == "forward" and self.count % 2 else in_loop("")

    analysis = run({"forward": 100}, Half())
    found = [finding for finding in analysis.findings if finding.cause == "host-code-in-model"]
    half_ns = float(analysis.facts.part("forward").mean()) / 2

    assert bool(found) == is_told
    if found:
        assert f"({library}), most of it called at model.py:31, in forward()" in found[0].sentence
        assert found[0].predicted_gain == pytest.approx(half_ns / analysis.facts.mean_step_ns, abs=0.05)


@pytest.mark.parametrize(("library", "share"), [("torch.distributed", 0.5), ("torch", 0.0)])
def test_what_asking_for_many_small_collectives_takes_goes_with_them(library: str, share: float) -> None:
    """The hooks of FSDP on every module: half of forward, without which it is divided as well."""

    class Half:
        count = 0

        def __call__(self, part: str) -> Line:
            self.count += 1
            return f"model.py:31 forward (in {library if self.count % 2 else 'torch'})"

    each: list[tuple[str, float]] = [("forward", 3.0), ("wait:collective", 1.5)]
    steps: list[list[tuple[str, float]]] = [
        [*(each * 20), ("backward", 20.0), ("optimizer", 3.0)] for _ in range(STEPS)
    ]
    trace = make_trace([steps, steps], nbytes=30_000, tensors_per_collective=1)
    trace = replace(
        trace,
        meta=replace(trace.meta, runtime="torch"),
        collectives=trace.collectives.assign(caller=pd.Categorical(["gradient"] * len(trace.collectives))),
    )
    finding = best(analyze(looked_at(trace, {rank: Half() for rank in range(2)})), "many-small-collectives")
    without = 30 * 19 / 20 + share * (60 + 20) * 19 / 20

    assert finding.predicted_gain == pytest.approx(without / 113, abs=0.04)


def test_the_rest_of_a_line_is_for_the_librarys_sake() -> None:
    """What it slices and formats for what it calls most of the time."""

    class Texts:
        looks = 0

        def __call__(self, part: str) -> Line:
            if part != "forward":
                return "train.py:80 <module> (in torch)"
            self.looks += 1
            return ("net.py:31 forward (in json)", "net.py:31 forward (in json)", "net.py:31 forward (in torch)")[
                self.looks % 3
            ]

    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"forward": 90})))
    finding = best(analyze(looked_at(trace, {rank: Texts() for rank in range(2)})), "host-code-in-model")

    assert finding.predicted_gain == pytest.approx(90 / sum((HEALTHY | {"forward": 90}).values()), rel=0.15)


@pytest.mark.parametrize(("looks", "expected"), [(3, (0.375, 0.375)), (300, (0.25, 0.5))])
def test_ranks_share_what_only_chance_tells_apart(looks: int, expected: tuple[float, float]) -> None:
    """One of four looks on one rank and two on the other, or a hundred times as many."""
    row = np.repeat([0, 1], 4 * looks)
    count = len(row)
    found = CodeLooks(
        row=row,
        step=np.zeros(count, np.int64),
        part=np.full(count, PARTS.index("forward")),
        ns=np.ones(count),
        place=np.concatenate([np.arange(4 * looks) % 4 > 0, np.arange(4 * looks) % 2 > 0]).astype(np.int64),
        is_input=np.zeros(count, bool),
        places=(CodeSpan("a.py", 1, "f", ""), CodeSpan("b.py", 1, "f", "")),
        texts=("", ""),
        counts=((0, 0, 0, 0),) * 2,
        part_ns={"forward": np.full((2, 5), 1000)},
    ).spent_by_rank("forward", [0])

    assert tuple(found / 1000) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("nodes", "of_nodes", "backward_ms"),
    [(8192, 8200, 120), (8192, 16384, 60), (0, 8200, 0)],
    ids=["all that forward does not explain", "half of the graph", "no gradients"],
)
def test_a_loops_backward_goes_with_it(nodes: int, of_nodes: int, backward_ms: float) -> None:
    """What backward takes beyond twice the rest of forward, but no more of it than its share of the operations."""

    def seen(part: str) -> Line:
        return "model.py:14 forward" if part == "forward" else in_loop("")

    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"forward": 80, "backward": 120})))
    text = b'{"times":8192,"graph_nodes":%d,"of_graph_nodes":%d}' % (nodes, of_nodes)
    analysis = analyze(looked_at(trace, dict.fromkeys(range(2), seen), text=text))
    (loop,) = (finding for finding in analysis.findings if finding.cause == "python-loop")
    step_ms = analysis.facts.mean_step_ns / MS

    assert loop.evidence["backward_of_it_ns"] == pytest.approx(backward_ms * MS, rel=0.1)
    assert loop.predicted_gain == pytest.approx((80 + backward_ms) / step_ms, abs=0.05)


def test_a_line_of_several_operations_may_take_longer() -> None:
    """Of a loop's body that is one line."""

    def seen(part: str) -> Line:
        return "model.py:14 forward" if part == "forward" else in_loop("")

    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"forward": 80})))
    text = b'{"times":1800,"graph_nodes":7200,"of_graph_nodes":9000}'
    analysis = analyze(looked_at(trace, dict.fromkeys(range(2), seen), text=text))

    assert "python-loop" in {finding.cause for finding in analysis.findings}


@pytest.mark.parametrize("function", ["backward", "forward"])
def test_gradients_of_the_users_own_are_no_hooks(function: str) -> None:
    """Nor is what checkpointing computes once more."""

    def seen(part: str) -> Line:
        return f"model.py:20 {function}" if part == "backward" else in_loop("")

    causes = {finding.cause for finding in run({"backward": 100}, seen).findings}

    assert "code-in-backward" not in causes


def test_what_runs_in_forward_too_is_no_hook() -> None:
    """A block that is computed again in backward, under whatever name."""

    def seen(part: str) -> Line:
        return "model.py:20 block" if part in {"forward", "backward"} else in_loop("")

    assert "code-in-backward" not in {finding.cause for finding in run({"backward": 100}, seen).findings}


def test_many_lines_of_a_function_are_the_function() -> None:
    """None of them has most of it."""

    class Spread:
        count = 0

        def __call__(self, part: str) -> Line:
            self.count += 1
            return f"train.py:{50 + self.count % 5} augment" if part == "other" else in_loop("")

    assert "at train.py:50 to 54, in augment()." in best(run({"host": 60}, Spread()), "host-code").sentence


def test_waiting_for_workers_is_no_line_of_the_users() -> None:
    """The loop's line asks for the batch in any case; what makes it is in other processes."""

    def seen(part: str) -> Line:
        return "train.py:40 <module> (in queue)" if part == "data" else in_loop("")

    finding = best(run({"data": 80}, seen), "slow-loader")

    assert "code" not in finding.evidence


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1]",
        b'{"times":-1}',
        b'{"times":1e300}',
        b'{"times":"9"}',
        b'{"text":7}',
        b'{"text":',
        b'{"text":"a\\nb"}',
    ],
)
def test_any_text_of_a_line_may_be_in_a_file(text: bytes) -> None:
    """Damaged, or none: the line has a number all the same."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"host": 60})))
    analysis = analyze(looked_at(trace, {0: in_loop, 1: in_loop}, text=text))

    assert "train.py:57, in augment()" in best(analysis, "host-code").sentence
    assert "\n" not in best(analysis, "host-code").sentence


def test_few_looks_say_nothing() -> None:
    """As of a recording of a second."""
    trace = make_trace(jittered(uniform(2, STEPS, HEALTHY | {"host": 60})))
    analysis = analyze(looked_at(trace, {0: in_loop, 1: in_loop}, every_ms=2500))

    assert not summarize(analysis).code
    assert all("code" not in finding.evidence for finding in analysis.findings)


def test_a_place_in_words() -> None:
    """A line of a script, outside any function, and lines of one."""
    place = Place(
        file="a.py",
        function="<module>",
        lines=(3, 3),
        text="f()",
        times=0,
        graph_nodes=0,
        of_graph_nodes=0,
        times_at_first=0,
        library="",
        mean_ns=1.0,
        share=1.0,
        looks=9,
    )

    assert place.where == "a.py:3: f()"
    assert replace(place, function="g", lines=(3, 5), text="").where == "a.py:3 to 5, in g()"
    assert replace(place, function="g", times=4096).where == "a.py:3, in g(), 4,096 times a step: f()"
