"""Scripts without our `hvd`: which rank TF_CONFIG makes them, and which framework they are written in."""

import json
import sys
from types import ModuleType
from typing import Any

import pytest

from tlkit.runtime.core import framework
from tlkit.runtime.core.framework import used_framework
from tlkit.runtime.instrument.frameworks import note_framework
from tlkit.runtime.instrument.tensorflow_cluster import Task, read_task


def config(cluster: Any, kind: str, index: int) -> dict[str, str]:
    """An environment with that TF_CONFIG."""
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def test_workers_come_after_the_chief() -> None:
    """As TensorFlow counts them; what does not train is no rank."""
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"], "evaluator": ["e:1"]}

    assert read_task(config(cluster, "chief", 0)) == Task(rank=0, size=3)
    assert read_task(config(cluster, "worker", 1)) == Task(rank=2, size=3)
    assert read_task(config({"worker": ["a:1", "b:1"]}, "worker", 1)) == Task(rank=1, size=2)
    assert read_task(config(cluster, "evaluator", 0)) is None
    assert read_task(config(cluster, "ps", 0)) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "no JSON",
        '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}',
        '{"task": 3}',
    ],
)
def test_what_names_no_cluster_is_one_process(text: str) -> None:
    """A single worker, too."""
    assert read_task({"TF_CONFIG": text}) is None
    assert read_task({}) is None


def test_an_index_beyond_the_cluster_is_no_rank() -> None:
    """TensorFlow itself refuses it."""
    assert read_task(config({"worker": ["a:1", "b:1"]}, "worker", 2)) is None


@pytest.mark.parametrize(
    ("names", "of_strategy", "expected"),
    [
        (("keras",), False, "keras"),
        (("tf_keras",), False, "keras"),
        (("tensorflow",), False, "tensorflow"),
        (("tensorflow", "keras"), False, "keras"),
        (("keras",), True, "tensorflow"),  # its own loop does not train with the strategy
        ((), True, "tensorflow"),
        ((), False, "torch"),  # as with TensorBoard, which loads TensorFlow
        (("torch", "tensorflow"), False, "torch"),
    ],
)
def test_the_script_says_what_it_is_written_in(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], expected: str, *, of_strategy: bool
) -> None:
    """By modules and classes among its names, not by what is loaded."""
    monkeypatch.setattr(framework._Used, "name", "torch")
    monkeypatch.setattr(framework._Used, "versions", {})
    script = ModuleType("__main__")
    for name in names:
        setattr(script, name, type(name, (), {"__module__": f"{name}.layers"}))
    for name in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "__main__", script)
    if of_strategy:
        for name, value in config({"worker": ["a:1", "b:1"]}, "worker", 0).items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.delenv("TF_CONFIG", raising=False)

    note_framework()

    assert used_framework()[0] == expected
