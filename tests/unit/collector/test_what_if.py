"""Predictions, conditions for CI, and the report as Markdown."""

import json
from pathlib import Path
from typing import Any

import pytest

from tlkit.collector import analyze
from tlkit.collector.commands.analyze import main
from tlkit.collector.predict.what_if import FORMS, predict
from tlkit.collector.reports.markdown import escape
from tlkit.timeline.errors import UsageError

from .test_device import kernel, kineto, launch


def step(forward: float, loading: float = 10) -> list[dict[str, Any]]:
    """A step of 100 ms: loading, forward, 15 of exposed communication, 20 of idleness at least."""
    end = loading + forward
    return [
        {"cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcess.__next__", "ts": 0, "dur": loading},
        launch(loading, 1), kernel("gemm", loading, forward, 1),
        launch(end, 2), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", end, 15, 2, stream=20),
    ]  # fmt: skip


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Loading 10, forward 40, communication 15, idle 35."""
    return kineto(tmp_path / "t.json", step(40), steps=20, step_ms=100)


@pytest.mark.parametrize(
    ("changes", "predicted_ms"),
    [
        (["data=0"], 90),
        (["data=50%"], 95),
        (["compute=0.5x"], 80),
        (["bandwidth=3x"], 90),
        (["negotiation=0"], 100),
        (["checkpoint=0"], 100),
        (["straggler=none"], 100),
        (["data=0", "compute=0"], 50),
        (["compute[rank0]=0"], 60),
    ],
)
def test_a_step_is_put_together_anew(trace: Path, changes: list[str], predicted_ms: float) -> None:
    """Parts of a known step, alone and together."""
    prediction = predict(analyze(trace).facts, changes)
    assert prediction.step_ns / 1e6 == pytest.approx(100, abs=0.01)
    assert prediction.predicted_ns / 1e6 == pytest.approx(predicted_ms, abs=0.1)
    assert prediction.gain == pytest.approx(1 - predicted_ms / 100, abs=0.001)


def test_communication_hides_behind_what_is_left_of_backward(tmp_path: Path) -> None:
    """15 of it are exposed, 10 hide already, backward takes 30."""
    events = [
        {"cat": "cpu_op", "name": "autograd::engine::evaluate_function: MmBackward0", "ts": 30, "dur": 5},
        launch(31, 2), kernel("gemm", 33, 30, 2),
        launch(34, 3), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 53, 25, 3, stream=20),
    ]  # fmt: skip
    trace = kineto(tmp_path / "t.json", events, steps=20, step_ms=100)
    assert predict(analyze(trace).facts, ["overlap=perfect"]).predicted_ns / 1e6 == pytest.approx(85, abs=0.1)


@pytest.mark.parametrize(
    "change",
    ["", "data", "data=fast", "speed=2x", "compute[rank7]=0", "bandwidth[rank0]=2x", "bandwidth=0", "fusion=much",
     "straggler=some", "overlap=bad", "data=3", "data=-1"],
)  # fmt: skip
def test_what_is_not_understood_is_one_clear_error(trace: Path, change: str) -> None:
    """With what could be written instead."""
    with pytest.raises(UsageError, match="--what-if"):
        predict(analyze(trace).facts, [change])


@pytest.mark.parametrize("form", FORMS)
def test_all_forms_are_understood(trace: Path, form: str) -> None:
    """As help shows them."""
    change = form.replace("rank3", "rank0")
    assert 0 <= predict(analyze(trace).facts, [change]).gain <= 1


def test_the_report_holds_predictions(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the terminal, as JSON and as Markdown."""
    assert main([str(trace), "--what-if", "data=0,compute=0", "--json", "-"]) == 0
    (prediction,) = json.loads(capsys.readouterr().out)["what_if"]
    assert prediction["predicted_gain"] == pytest.approx(0.5, abs=0.001)
    assert main([str(trace), "--what-if", "data=0"]) == 0
    assert "100 ms → 90.0 ms" in capsys.readouterr().out
    assert main([str(trace), "--what-if", "data=0", "--markdown", "-"]) == 0
    assert "| data=0 | 100 ms → 90.0 ms | 10% |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("exposed_comm>20%", 0),
        ("exposed_comm>14%", 1),
        ("data>5%", 1),
        ("data<5%", 0),
        ("step_ms>99", 1),
        ("p95_ms>=101", 0),
        ("idle>=35%", 1),
        ("gain>90%", 0),
        ("hidden_comm>0%", 0),
        ("nonsense>1%", 2),
        ("data>5", 2),
        ("step_ms>5%", 2),
        ("data=5%", 2),
    ],
)
def test_conditions_decide_the_exit_status(
    trace: Path, capsys: pytest.CaptureFixture[str], condition: str, status: int
) -> None:
    """1 if one holds, and why; 2 if it cannot be understood."""
    assert main([str(trace), "--fail-on", condition, "--json", "-"]) == status
    said = capsys.readouterr().err
    assert (f"--fail-on {condition}" in said) == (status > 0)


def test_names_out_of_a_trace_are_no_markup() -> None:
    """Neither Markdown nor HTML."""
    assert escape("<script>*a*|b`c`[d](e)\x1b") == "&lt;script&gt;\\*a\\*\\|b\\`c\\`\\[d\\](e)\N{REPLACEMENT CHARACTER}"
