"""Writes docs/commands.md out of the parsers of the commands.

python packaging/commands_reference.py            # write it
python packaging/commands_reference.py --check    # end with status 1 if it is not what the parsers say
"""

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"

COMMANDS = {
    "tl-run": "tlkit.runtime.launch.options",
    "tl-analyze": "tlkit.collector.commands.analyze",
    "tl-tune": "tlkit.collector.tuning.cli",
    "tl-diff": "tlkit.collector.commands.diff",
    "tl-trace": "tlkit.timeline.commands.trace",
    "tl-dash": "tlkit.dashboard.cli",
    "tl-collect": "tlkit.collector.service.cli",
}

HEAD = """\
# Commands

Generated from the parsers of the commands by `python packaging/commands_reference.py`. Every command has `--help` and
`--version`, and `--print-completion bash` (`zsh`, `tcsh`) prints a completion script for that shell:

```
tl-analyze --print-completion bash > ~/.local/share/bash-completion/completions/tl-analyze
```
"""


def escape(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def described(action: argparse.Action) -> tuple[str, str]:
    """A flag or argument, and what it does."""
    value = " ".join(action.metavar) if isinstance(action.metavar, tuple) else action.metavar
    if value is None and action.choices is not None:
        value = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    if value is None and action.nargs != 0:
        value = action.dest.upper().replace("_", "-")
    if not action.option_strings:
        return f"`{value or action.dest}`", escape(action.help or "")
    name = ", ".join(f"`{flag}`" for flag in action.option_strings)
    help_ = (action.help or "") % {"default": action.default, "prog": ""}
    return name + (f" `{value}`" if value and action.nargs != 0 else ""), escape(help_)


def section(parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    """The lines of a command, and of its commands."""
    yield f"\n{'#' * level} {parser.prog}\n"
    description = (parser.description or "").strip()
    yield f"```text\n{description}\n```" if "\n" in description else description
    rows = []
    nested: list[argparse.ArgumentParser] = []
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to its arguments
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            nested = list(dict.fromkeys(action.choices.values()))
        elif action.help != argparse.SUPPRESS and action.dest not in {"help", "version", "print_completion"}:
            rows.append(described(action))
    if rows:
        yield "\n| | |\n| --- | --- |"
        for name, text in rows:
            yield f"| {name} | {text} |"
    for inner in nested:
        yield from section(inner, level + 1)
    if parser.epilog:
        yield (
            f"\n```text\n{parser.epilog.strip()}\n```"
            if "\n" in parser.epilog.strip()
            else f"\n{parser.epilog.strip()}"
        )


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for module in COMMANDS.values():
        lines += section(import_module(module).make_parser(), 2)
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines()) + "\n"


def main() -> None:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    text = page()
    if parser.parse_args().check:
        if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
            sys.exit(f"{PAGE} is not what the commands say: run python {Path(__file__).name}")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
