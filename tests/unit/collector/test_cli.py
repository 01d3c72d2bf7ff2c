"""The command `tl-analyze`, on real Horovod timelines and on input that is none."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tlkit.collector.commands.analyze import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.json"], "nowhere.json: no such file"),
        (["{tmp}/text.json"], "not a trace that any reader recognises"),
        (["{tmp}/empty.json"], "holds no spans"),
        (["{tmp}/text.json", "--steps", "3"], "two numbers and a colon"),
        (["{tmp}/text.json", "--steps", "9:3"], "second number has to be larger"),
        (["{tmp}/text.json", "--ranks", "a"], "numbers with commas"),
        ([], "required: TRACE"),
        (["{tmp}/text.json", "--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_input_is_one_clear_line_and_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback, nothing on stdout."""
    (tmp_path / "text.json").write_text("no trace")
    (tmp_path / "empty.json").write_text('[\n{"name":"tlkit_shard","ph":"M","pid":0,"tid":0,"ts":0,"args":{"rank":0}}')
    status = main([argument.format(tmp=tmp_path) for argument in arguments])
    captured = capsys.readouterr()

    assert status == 2
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("tl-analyze: ")
    assert message in captured.err


def test_json_goes_to_standard_output_alone(own_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `-` there is nothing else on stdout."""
    assert main([str(own_traces / "horovod" / "cnn_np2.json.gz"), "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)

    assert report["schema"] == "tlkit.report/1"
    assert report["source"]["format"] == "horovod"
    assert report["source"]["known_categories"] == ["negotiate", "queue", "fusion", "collective"]
    assert report["steps"]["inferred"] is True
    assert sum(report["breakdown"]["median_step_ns"].values()) == report["steps"]["median_ns"]


def test_the_trace_is_never_overwritten(own_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` onto the input is refused."""
    copy = tmp_path / "t.json"
    copy.write_bytes((own_traces / "horovod" / "cnn_np2.json.gz").read_bytes())
    before = copy.read_bytes()

    assert main([str(copy), "--json", str(copy)]) == 2
    assert "would overwrite the trace" in capsys.readouterr().err
    assert copy.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "class_", "cause", "ranks"),
    [
        ("bn_straggler_r1_fwd50ms_cnn_np2_nocache", "straggler", "late-rank", [1]),
        ("bn_straggler_r1_fwd50ms_cnn_np2", "straggler", "late-rank", []),
        ("bn_slowdata_all60ms_cnn_np2", "unknown", "time-outside-communication", []),
        ("bn_comm_fatfc_np2", "communication", "oversize-gradient", []),
        ("bn_tiny_nofusion_np2", "communication", "many-small-collectives", []),
        ("cnn_np2_fusion0", "communication", "many-small-collectives", []),
    ],
)
def test_real_horovod_timelines_with_known_faults(
    name: str, class_: str, cause: str, ranks: list[int], own_traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the file shows is found; what it cannot show is reported as unknown."""
    main([str(own_traces / "horovod" / f"{name}.json.gz"), "--json", "-"])
    verdict = json.loads(capsys.readouterr().out)["verdict"]

    assert (verdict["class"], verdict["cause"], verdict["ranks"]) == (class_, cause, ranks), verdict["sentence"]


def test_every_real_horovod_timeline_gives_a_report(
    real_traces: Callable[[str], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """For people too, with a verdict and the note that communication is all there is."""
    for path in real_traces("horovod/*"):
        assert main([str(path)]) == 0
        printed = capsys.readouterr().out
        assert "╭─ " in printed
        assert "Horovod records communication on rank 0 only" in printed.replace("\n", " ")


def test_hostile_names_are_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No terminal control and no markup of a name reaches the screen."""
    name = "allreduce.[bold]\x1b[31mred\x07"
    rows = ['{"name":"tlkit_shard","ph":"M","pid":0,"tid":0,"ts":0,"args":{"rank":0,"size":1,"run_id":"x"}}']
    for step in range(6):
        at = step * 10_000
        args = f'"args":{{"seq":{step},"bytes":9000000,"dtype":"float32","tensors":1}}'
        life = f'"cat":"tensor","id":"{step}","pid":0,"tid":3'
        rows += [
            f'{{"name":"STEP","cat":"step","ph":"X","pid":0,"tid":0,"ts":{at},"dur":9000,"args":{{"step":{step}}}}}',
            f'{{"name":"SYNCHRONIZE","cat":"other","ph":"X","pid":0,"tid":1,"ts":{at},"dur":8000}}',
            f'{{"name":"ALLREDUCE","cat":"collective","ph":"X","pid":0,"tid":3,"ts":{at},"dur":8000,{args}}}',
            f'{{"name":{json.dumps(name)},"ph":"b",{life},"ts":{at},"args":{{"bytes":9000000}}}}',
            f'{{"name":{json.dumps(name)},"ph":"e",{life},"ts":{at + 8000}}}',
        ]
    (tmp_path / "t.json").write_text("[\n" + ",\n".join(rows) + "\n]")

    assert main([str(tmp_path / "t.json")]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "[bold]" in printed
