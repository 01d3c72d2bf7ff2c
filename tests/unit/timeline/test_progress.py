"""The progress bar."""

import io
import threading

import pytest

from tlkit.timeline.commands import progress


class Terminal(io.StringIO):
    """Stands in for a terminal, without which there is no bar."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal, and a bar that does not wait.  No fixture: pytest sets standard error anew after those."""
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return shown


def test_many_threads_may_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of several files do, and the first of them makes the bar."""
    terminal = on_terminal(monkeypatch)
    errors: list[BaseException] = []
    for _ in range(20):
        together = threading.Barrier(4)

        def report(bar: progress.ProgressBar, together: threading.Barrier = together) -> None:
            together.wait()
            try:
                for done in range(10):
                    bar.update(done, 10)
            except BaseException as error:
                errors.append(error)

        with progress.ProgressBar() as bar:
            threads = [threading.Thread(target=report, args=(bar,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert errors == []
    assert "reading" in terminal.getvalue()


@pytest.mark.parametrize("plain", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_where_codes_are_not_wanted_there_is_no_bar(monkeypatch: pytest.MonkeyPatch, plain: tuple[str, str]) -> None:
    """It is made of them."""
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv(*plain)
    with progress.ProgressBar() as bar:
        bar.update(1, 2)
    assert terminal.getvalue() == ""
