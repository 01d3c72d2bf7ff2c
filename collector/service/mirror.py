"""A collector's copy of a run, fetched while it grows."""

import re
import threading
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ...timeline.errors import UsageError
from .client import Client

POLL_S: Final = 0.5
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,120}")


class Mirror:
    """Fetches the shards of one run of a collector into a folder."""

    def __init__(
        self,
        url: str,
        run: str | None,
        token: str,
        folder: Path,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Prepare.

        Args:
            url: of the collector.
            run: which one; None for the one that grew last.
            token: the collector's.
            folder: where to put the shards.
            on_trouble: called with words when something hinders it or the run's sender, and with "" when nothing does.

        Raises:
            UsageError: `url` is none.
        """
        self._client = Client(url, token, "--collector")
        self.run, self._folder, self._tell = run, folder, on_trouble
        self._run_id = ""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_fetching, name="tlkit-mirror", daemon=True)

    def start(self) -> None:
        """Fetch from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop fetching."""
        self._stopping.set()

    def _keep_fetching(self) -> None:
        while not self._stopping.is_set():
            try:
                self._tell(self.fetch())
            except (OSError, UsageError) as error:
                self._tell(str(error))
            except (KeyError, TypeError, ValueError):
                self._tell(f"the answer of {self._client.url} is not understood")
            self._stopping.wait(POLL_S)

    def fetch(self) -> str:
        """Fetch what is new; returns what hinders the run's sender, "" if nothing does.

        Raises:
            OSError: the collector does not answer, or what it says cannot be written.
            UsageError: it refuses.
        """
        if self.run is None:
            runs = self._ask("/v1/runs")["runs"]
            if not runs:
                return ""
            self.run = str(runs[0])
        where = f"/v1/runs/{urllib.parse.quote(self.run, safe='')}"
        described = self._ask(where)
        if described.get("run_id", "") != self._run_id:
            if self._run_id:  # another run has taken the name
                for path in self._folder.iterdir():
                    path.unlink()
            self._run_id = described.get("run_id", "")
        for name, size in described["shards"].items():
            if _NAME.fullmatch(name):
                self._fetch_shard(f"{where}/shards/{name}", self._folder / name, int(size))
        waiting = described.get("waiting")
        return f"the collector does not take more of this run: {waiting}" if waiting else ""

    def ask_dump(self) -> str:
        """Ask the run's flight recorders to set aside what they have; returns what to say of it.

        Raises:
            OSError: the collector does not answer.
            UsageError: it refuses.
        """
        if self.run is None:
            return "there is no run yet"
        where = f"/v1/runs/{urllib.parse.quote(self.run, safe='')}"
        status, answer = self._client.ask("POST", f"{where}/dump?why=asked+for+in+the+dashboard", b"")
        if status == 404:  # noqa: PLR2004
            return str(answer.get("error", "the run cannot be asked"))
        return f"asked (request {answer.get('request', '')}); the job's log says where it is"

    def _fetch_shard(self, where: str, path: Path, size: int) -> None:
        have = path.stat().st_size if path.exists() else 0
        while have < size:
            status, piece = self._client.fetch("GET", f"{where}?offset={have}")
            if status != 200 or not piece:  # noqa: PLR2004
                return
            with path.open("ab") as file:
                file.write(piece)
            have += len(piece)

    def _ask(self, path: str) -> dict[str, Any]:
        return self._client.ask("GET", path)[1]
