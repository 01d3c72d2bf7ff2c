"""Sends the shards of a job to a collector while they grow.

It reads the files that the ranks write, in a process of its own and at low priority: whatever the network or the collector does,
no training step waits for it, and what has not been sent is still in the file.
"""

import json
import logging
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ...timeline.errors import TraceNotFoundError, UsageError
from ...timeline.open import files_of

#: Bytes of one piece.
PIECE_NBYTES: Final = 1024 * 1024
POLL_S: Final = 0.25
_TIMEOUT_S: Final = 10.0
#: Waits after failures, doubled each time.
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 5.0

_log = logging.getLogger("tlkit.collector")


class Pusher:
    """Keeps a collector's copy of some shards up to date."""

    def __init__(self, paths: Sequence[str], url: str, run: str | None, token: str = "") -> None:
        """Prepare.

        Args:
            paths: as `open_trace` takes them; nothing needs to be there yet.
            url: of the collector, `http://host:port`.
            run: what the run is called there; None for the timeline's name and the run's own id, so that the next run of the
                same name is another one.
            token: the collector's.

        Raises:
            UsageError: `url` is none.
        """
        if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(f"--to {url}: the address of a collector is needed, as http://host:8060")
        self._paths, self.run, self._token = list(paths), run, token
        self._url = url.rstrip("/")
        self._sent: dict[str, int] | None = None
        """Bytes of each shard that the collector has; None until it was asked."""

    def send_new(self) -> int:
        """Send what the collector does not have yet; returns the bytes.

        Raises:
            OSError: it does not answer.
            UsageError: it refuses what it is sent.
        """
        try:
            files = files_of(self._paths)
        except TraceNotFoundError:
            return 0
        if self.run is None:
            self.run = _name_of_run(files[0])
            if self.run is None:
                return 0
        if self._sent is None:
            self._sent = self._ask(f"/v1/runs/{self.run}")["shards"]
        total = 0
        for path in files:
            total += self._send(path)
        return total

    def _send(self, path: Path) -> int:
        assert self._sent is not None
        total = 0
        with path.open("rb") as file:
            while True:
                offset = self._sent.get(path.name, 0)
                if offset > path.stat().st_size:
                    raise UsageError(
                        f"{path.name} of the run {self.run} is longer at the collector than here: it is another run's; "
                        "choose a name with --run"
                    )
                file.seek(offset)
                piece = file.read(PIECE_NBYTES)
                if not piece:
                    return total
                name = urllib.parse.quote(path.name)
                answer = self._ask(f"/v1/runs/{self.run}/shards/{name}?offset={offset}", piece)
                # Where the collector knows better, it says so: some of it had arrived before.
                self._sent[path.name] = int(answer["size"])
                if self._sent[path.name] > offset:
                    total += self._sent[path.name] - offset
                else:
                    return total

    def _ask(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        method = "GET" if body is None else "PUT"
        request = urllib.request.Request(self._url + path, data=body, method=method)  # noqa: S310  http or https, see above
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/octet-stream")
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                value: dict[str, Any] = json.loads(answer.read())
                return value
        except urllib.error.HTTPError as error:
            said = error.read(10_000)
            if error.code == 409:  # noqa: PLR2004  conflict
                conflict: dict[str, Any] = json.loads(said)
                return conflict
            if error.code >= 500:  # noqa: PLR2004  it may recover
                raise OSError(f"the collector fails: {error.code}") from error
            try:
                reason = json.loads(said).get("error", "")
            except ValueError:
                reason = ""
            raise UsageError(f"the collector at {self._url} refuses: {reason or error.reason}") from error
        except ValueError as error:
            raise UsageError(f"what answers at {self._url} is no collector") from error

    def run_until(self, is_over: Callable[[], bool]) -> int:
        """Send until `is_over`, and then what is left; returns the bytes sent.  Goes on through failures of the network.

        Raises:
            UsageError: the collector refuses what it is sent.
        """
        total, wait_s = 0, _FIRST_WAIT_S
        while True:
            over = is_over()
            try:
                total += self.send_new()
                wait_s = _FIRST_WAIT_S
                if over:
                    return total
            except OSError as error:
                _log.debug("nothing could be sent: %s", error)
                self._sent = None  # whatever it has now
                if over and wait_s >= _LONGEST_WAIT_S:
                    _log.warning("the collector at %s does not answer: the rest is in the files", self._url)
                    return total
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            time.sleep(POLL_S)


def _name_of_run(path: Path) -> str | None:
    """The timeline's name and its run's id; None as long as the file has no header."""
    with path.open("rb") as file:
        found = re.search(rb'"run_id": ?"([0-9a-f]{1,32})"', file.read(4096))
    if found is None:
        return None
    stem = re.sub(r"(\.rank\d+)?\.json.*$", "", path.name)
    cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip(".-")[:80] or "run"
    return f"{cleaned}-{found[1].decode()[:8]}"


def be_modest() -> None:
    """Take the processor only when nobody else wants it."""
    try:
        os.nice(15)
    except OSError:
        _log.debug("the priority cannot be lowered")
