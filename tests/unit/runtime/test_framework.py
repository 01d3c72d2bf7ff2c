"""Which framework a timeline says it is of, from the binding that is started to the trace that is read."""

from pathlib import Path

import pytest

from tests.unit.runtime import doubles
from tests.unit.timeline.test_readers import shard
from tlkit.runtime.core import framework
from tlkit.runtime.core.framework import use_framework, used_framework
from tlkit.timeline import open_trace
from tlkit.timeline.record import recorder
from tlkit.timeline.vocabulary import FORWARD, FRAMEWORKS, Category


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, also afterwards."""
    monkeypatch.setattr(framework._Used, "name", "torch")
    monkeypatch.setattr(framework._Used, "versions", {})


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shard_says_what_the_script_is_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The header of the file, its versions, and the trace made of it."""
    doubles.use_portable_recorder(monkeypatch)
    use_framework(name, {name: "1.2"})
    doubles.start(tmp_path / "t.json")
    recorder.end(recorder.begin(Category.FORWARD, FORWARD))
    recorder.stop_timeline()

    assert f'"{name}":"1.2"' in (tmp_path / "t.json").read_text().splitlines()[1]
    assert open_trace(tmp_path / "t.json").meta.framework == name


def test_nothing_said_is_torch() -> None:
    """As it was before there were others."""
    assert used_framework() == ("torch", {})


def test_what_no_framework_is_called_is_refused() -> None:
    """Names of backends, say."""
    with pytest.raises(ValueError, match="'mxnet' is none of torch, tensorflow, keras, jax"):
        use_framework("mxnet", {})
    assert used_framework()[0] == "torch"


@pytest.mark.parametrize(("said", "read"), [(None, "torch"), ('"jax"', "jax"), ('"<b>"', ""), ("[1]", "")])
def test_shards_without_the_key_are_of_torch_and_odd_ones_of_nobody(
    tmp_path: Path, said: str | None, read: str
) -> None:
    """Shards from before the key was there, and hostile ones."""
    text = shard()
    assert '"framework":"torch",' in text
    changed = text.replace('"framework":"torch",', "" if said is None else f'"framework":{said},')
    (tmp_path / "t.json").write_text(changed)

    assert open_trace(tmp_path / "t.json").meta.framework == read
