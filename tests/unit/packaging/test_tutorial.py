"""The tutorial's output of recorded runs is what the commands print."""

import re
import shlex
from pathlib import Path

import pytest

from tlkit.collector.commands.analyze import main as tl_analyze
from tlkit.collector.commands.diff import main as tl_diff

REPOSITORY = Path(__file__).resolve().parents[3]
COMMANDS = {"tl-analyze": tl_analyze, "tl-diff": tl_diff}
SHOWN = re.findall(r"```console\n\$ (.*?)\n(.*?)```", (REPOSITORY / "docs" / "tutorial.md").read_text(), re.DOTALL)


def without_layout(text: str) -> str:
    """Words alone: terminals break lines at other places."""
    return " ".join(text.replace("│", " ").replace("─", " ").split())


def test_there_are_outputs_to_compare() -> None:
    """One for each command that reads a recorded run."""
    assert len(SHOWN) == 6


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_of_the_tutorial_prints_what_is_shown(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Word for word."""
    monkeypatch.chdir(REPOSITORY)
    name, *arguments = shlex.split(command)
    COMMANDS[name](arguments)

    assert without_layout(shown) in without_layout(capsys.readouterr().out)
