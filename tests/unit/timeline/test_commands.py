"""What the commands say of words that they do not know."""

from collections.abc import Callable
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("module", "argv", "said"),
    [
        ("collector.commands.analyze", ["t.json", "--what-iff", "data=0"], "did you mean --what-if?"),
        ("collector.commands.diff", ["a", "b", "--fail-if-slow3r=5%"], "did you mean --fail-if-slower?"),
        ("runtime.launch.cli", ["-np", "2", "--fusion-treshold-mb", "3", "x"], "did you mean --fusion-threshold-mb?"),
        ("runtime.launch.cli", ["-npp", "2", "python", "t.py"], "did you mean -np?"),
        ("timeline.commands.trace", ["inof", "t.json"], "did you mean info?"),
        (
            "timeline.commands.trace",
            ["slice", "t.json", "-o", "x", "--categoires", "data"],
            "did you mean --categories?",
        ),
        (
            "collector.service.cli",
            ["push", "t.json", "--to", "http://h", "--tokn-file", "x"],
            "did you mean --token-file?",
        ),
        ("dashboard.cli", ["t.json", "--folow"], "did you mean --follow?"),
        ("collector.tuning.cli", ["--minuts", "3", "python", "t.py"], "did you mean --minutes?"),
        ("collector.commands.analyze", ["t.json", "--xyzzy"], "see tl-analyze --help"),
        ("collector.commands.analyze", [], "see tl-analyze --help"),
    ],
)
def test_a_mistyped_flag_is_answered_with_the_one_that_was_meant(
    module: str, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit status 2."""
    main: Callable[[list[str]], int] = import_module(f"tlkit.{module}").main

    assert main(argv) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_a_shell_is_told_what_completes_a_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands and their flags; what is called after a file completes as one."""
    parser = import_module("tlkit.timeline.commands.trace").make_parser()
    with pytest.raises(SystemExit) as left:
        parser.parse_args(["--print-completion", shell])
    printed = capsys.readouterr().out

    assert left.value.code == 0
    assert "convert" in printed
    assert ("--categories" in printed) == (shell != "tcsh")  # which completes flags of the command itself only
    files = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "/f/"}[shell]
    assert files in printed
