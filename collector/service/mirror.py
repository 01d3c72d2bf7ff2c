"""A collector's copy of a run, fetched while it grows."""

import json
import logging
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

from ...timeline.errors import UsageError

POLL_S: Final = 0.5
_TIMEOUT_S: Final = 10.0

_log = logging.getLogger("tlkit.collector")


class Mirror:
    """Fetches the shards of one run of a collector into a folder."""

    def __init__(self, url: str, run: str | None, token: str, folder: Path) -> None:
        """Prepare.

        Args:
            url: of the collector.
            run: which one; None for the one that grew last.
            token: the collector's.
            folder: where to put the shards.

        Raises:
            UsageError: `url` is none.
        """
        if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(f"--collector {url}: an address is needed, as http://host:8060")
        self._url, self.run, self._token, self._folder = url.rstrip("/"), run, token, folder
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
                self.fetch()
            except (OSError, ValueError, KeyError) as error:
                _log.debug("the collector cannot be read: %s", error)
            self._stopping.wait(POLL_S)

    def fetch(self) -> int:
        """Fetch what is new; returns its bytes.

        Raises:
            OSError: the collector does not answer, or refuses.
        """
        if self.run is None:
            runs = json.loads(self._get("/v1/runs"))["runs"]
            if not runs:
                return 0
            self.run = str(runs[0])
        total = 0
        for name, size in json.loads(self._get(f"/v1/runs/{urllib.parse.quote(self.run)}"))["shards"].items():
            if "/" in name or name.startswith("."):
                continue
            path = self._folder / name
            have = path.stat().st_size if path.exists() else 0
            while have < int(size):
                where = f"/v1/runs/{urllib.parse.quote(self.run)}/shards/{urllib.parse.quote(name)}?offset={have}"
                piece = self._get(where)
                if not piece:
                    break
                with path.open("ab") as file:
                    file.write(piece)
                have += len(piece)
                total += len(piece)
        return total

    def _get(self, path: str) -> bytes:
        request = urllib.request.Request(self._url + path)  # noqa: S310  http or https, see above
        request.add_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
            return content
