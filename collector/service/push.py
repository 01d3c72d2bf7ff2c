"""Sends the shards of a job to a collector while they grow.

It reads the files that the ranks write, in a process of its own and at low priority: whatever the network or the collector does,
no training step waits for it, and what has not been sent is still in the file.
"""

import contextlib
import os
import re
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ...timeline.errors import TraceNotFoundError, UsageError
from ...timeline.read.open import files_of
from ...timeline.record.flight_requests import listens, request_dump
from .client import Client, WaitError
from .identity import HEAD_NBYTES, digest_of, run_id_in, start_of_before
from .pieces import Piece, pack

#: Bytes of one piece.
PIECE_NBYTES: Final = 1024 * 1024
#: Pieces up to this size go together, so many in a request.
SMALL_NBYTES: Final = 64 * 1024
TOGETHER: Final = 256
POLL_S: Final = 0.25
#: Which files there are is looked at for at most this share of the time: a thousand take a third of a second.
_LISTING_SHARE: Final = 0.1
#: A sender that has nothing to send says that it is there.
ALIVE_S: Final = 10.0
#: One whose run has a flight recorder also asks whether somebody wants what it has.
ASK_S: Final = 2.0
#: Waits after failures, doubled each time.
_FIRST_WAIT_S: Final = 0.25
_LONGEST_WAIT_S: Final = 5.0
#: Another run's bytes under our name, as often in a row, are no coincidence.
_MAX_CONFLICTS: Final = 8
#: After so many times in which nothing could be sent, nothing will be.
_MAX_IDLE: Final = 12
_UNREADABLE: Final = "the collector's answer is not understood"


class OtherRunError(Exception):
    """The collector has another run of that name."""


class Pusher:
    """Keeps a collector's copy of some shards up to date."""

    def __init__(
        self, paths: Sequence[str], url: str, run: str | None, token: str, on_news: Callable[[str], None]
    ) -> None:
        """Prepare.

        Args:
            paths: as `open_trace` takes them; nothing needs to be there yet.
            url: of the collector, `http://host:port`.
            run: what the run is called there; None for the timeline's name and the run's own id, so that the next run of the
                same name is another one.
            token: the collector's.
            on_news: called with words about what the user should know.

        Raises:
            UsageError: `url` is none.
        """
        self._client = Client(url, token, "--to")
        self._paths, self._chosen, self._say = list(paths), run, on_news
        self.run = run
        self.sent_nbytes = 0
        self._run_id = ""
        self._apart = ""
        """What a name ends in that has to be told from another run's."""
        self._there: dict[str, int] = {}
        """Bytes of each shard that the collector has, as far as it is known."""
        self._is_known = False
        self._goal: dict[str, int] = {}
        self._conflicts = 0
        self._told: set[str] = set()
        self._recording: Path | None = None
        """The folder of a flight recorder whose ranks hear requests."""
        self._asked = ""
        """The request that was passed on last."""
        self._alive_s = time.monotonic()
        self._takes_many = True
        """Whether the collector knows of many pieces in one request, as far as it was asked."""
        self._listed: list[Path] = []
        self._list_again_s = 0.0

    def send_new(self, *, is_last: bool = False) -> int:
        """Send what the collector does not have yet; returns the bytes.

        Args:
            is_last: what names no run by now never will.

        Raises:
            OSError: it does not answer, or cannot keep it now.
            UsageError: it refuses what it is sent.
        """
        total = 0
        try:
            files = self._files(is_last=is_last)
            if files and self.run is not None:
                self._ask_sizes()
                total += self._send_together(files)
                for path in files:
                    total += self._send(path)
                self._stay(sent=total > 0)
        except OtherRunError as error:
            self._keep_apart(str(error))
        return total

    def missing(self) -> dict[str, int]:
        """Bytes of each shard that are not at the collector, of those that were there when the end was asked for."""
        left = {name: nbytes - self._there.get(name, 0) for name, nbytes in self._goal.items()}
        return {name: nbytes for name, nbytes in left.items() if nbytes > 0}

    def _set_goal(self) -> None:
        """What is there now has to be sent; what is written from now on need not."""
        with contextlib.suppress(TraceNotFoundError, FileNotFoundError):
            self._goal = {path.name: path.stat().st_size for path in self._files(is_last=True)}

    def _files(self, *, is_last: bool) -> list[Path]:
        """The shards of the run, as they were found a moment ago if there are many."""
        began_s = time.monotonic()
        if is_last or began_s >= self._list_again_s or not self._listed:
            self._listed = self._find_files(is_last=is_last)
            now_s = time.monotonic()
            self._list_again_s = now_s + (now_s - began_s) * (1 / _LISTING_SHARE - 1)
        return self._listed

    def _find_files(self, *, is_last: bool) -> list[Path]:
        """The shards of the run; names the run as soon as they do."""
        try:
            found = {path: _head(path) for path in files_of(self._paths)}
        except (TraceNotFoundError, FileNotFoundError):
            self._say_once(f"waiting for {', '.join(self._paths)}: nothing is there yet")
            return []
        ids = {path: run_id_in(head) for path, head in found.items()}
        run_id = next((run_id for run_id in ids.values() if run_id), "")
        if run_id != self._run_id:
            if self._run_id:
                self._say(f"{', '.join(self._paths)}: another run begins")
            self._run_id, self.run = run_id, self._chosen
            self._forget()
        if found:
            self._apart = (run_id or digest_of(next(iter(found.values()))))[:8]
        if self.run is None:
            self.run = self._name(found, is_last=is_last)
        others = [path.name for path, of in ids.items() if of and of != run_id]
        if others:
            self._say_once(f"ignored, because they belong to another run: {', '.join(others[:8])}")
        self._recording = next((path.parent for path in found if listens(path.parent)), None)
        # A shard that names no run yet is left until it does, where others do.
        return [
            path
            for path, of in ids.items()
            if of == run_id or (not of and (is_last or len(found[path]) >= HEAD_NBYTES))
        ]

    def _forget(self) -> None:
        """Ask again what the collector has."""
        self._there, self._is_known, self._listed = {}, False, []

    def _name(self, found: dict[Path, bytes], *, is_last: bool) -> str | None:
        """The timeline's name and its run's id; None as long as nothing tells the run."""
        if not found:
            return None
        path, head = next(iter(found.items()))
        if not self._run_id and not (len(head) >= HEAD_NBYTES or (is_last and head)):
            return None
        stem = re.sub(r"(\.rank\d+)?\.json.*$", "", path.name)
        cleaned = re.sub(r"[^A-Za-z0-9._-]", "_", stem).lstrip(".-")[:80] or "run"
        return f"{cleaned}-{self._apart}"

    def _keep_apart(self, reason: str) -> None:
        """Another run has the name: take one of our own."""
        suffix = f"-{self._apart}"
        self._forget()
        self._conflicts += 1
        if self._conflicts > _MAX_CONFLICTS:
            raise UsageError(f"{reason}; choose another name with --run")
        if self.run is None or self.run.endswith(suffix):
            return  # the next run may just have begun to write to the same file: look at it again
        self.run = self.run[: 120 - len(suffix)] + suffix
        self._say(f"{reason}; this one is called {self.run} there")

    def _send_together(self, files: Sequence[Path]) -> int:
        """Send what is new of shards that have grown by little, many in one request; returns the bytes."""
        total, waiting, nbytes = 0, list[Piece](), 0
        if len(files) == 1:
            return 0
        for path in files:
            piece = self._small_piece(path) if self._takes_many else None
            if piece is None:
                continue
            waiting.append(piece)
            nbytes += len(piece.content)
            if len(waiting) == TOGETHER or nbytes > PIECE_NBYTES:
                total += self._put_together(waiting)
                waiting, nbytes = [], 0
        return total + (self._put_together(waiting) if waiting else 0)

    def _small_piece(self, path: Path) -> Piece | None:
        """What a shard has grown by, if that is little."""
        offset = self._there.get(path.name, 0)
        with path.open("rb") as file:
            if not 0 < os.fstat(file.fileno()).st_size - offset <= SMALL_NBYTES:
                return None
            start = start_of_before(offset)
            file.seek(start)
            before = file.read(offset - start)
            return Piece(path.name, offset, digest_of(before) if before else "", file.read(SMALL_NBYTES))

    def _put_together(self, pieces: Sequence[Piece]) -> int:
        query = urllib.parse.urlencode({**({"run_id": self._run_id} if self._run_id else {}), **self._can()})
        status, answer = self._client.ask("POST", f"{self._where()}/pieces?{query}", pack(pieces))
        if status == 412:  # noqa: PLR2004  precondition failed
            raise OtherRunError(str(answer.get("error", "the collector has another run of that name")))
        if status == 404:  # noqa: PLR2004  an older collector
            self._takes_many = False
            return 0
        sizes, total = _sizes_of(answer.get("shards")), 0
        for piece in pieces:
            size = sizes.get(piece.shard, piece.offset)
            self._there[piece.shard] = size
            total += max(size - piece.offset, 0)
        self.sent_nbytes += total
        self._conflicts = 0 if total else self._conflicts
        self._alive_s = time.monotonic()
        self._pass_on(answer)
        return total

    def _send(self, path: Path) -> int:
        total, there = 0, self._there
        with path.open("rb") as file:
            while True:
                offset = there.get(path.name, 0)
                if offset > os.fstat(file.fileno()).st_size:
                    raise OtherRunError(f"{path.name} of {self.run} is longer at the collector than the local file")
                start = start_of_before(offset)
                file.seek(start)
                before = file.read(offset - start)
                piece = file.read(PIECE_NBYTES)
                if not piece:
                    return total
                size = self._put(path.name, offset, before, piece)
                there[path.name] = size
                # Where the collector knows better, it says so: some of it had arrived before.
                if size <= offset:
                    return total
                total += size - offset
                self.sent_nbytes += size - offset
                self._conflicts = 0

    def _put(self, name: str, offset: int, before: bytes, piece: bytes) -> int:
        known = {"offset": offset, "run_id": self._run_id, "before": digest_of(before) if before else "", **self._can()}
        query = urllib.parse.urlencode({key: value for key, value in known.items() if value != ""})
        status, answer = self._client.ask("PUT", f"{self._where()}/shards/{urllib.parse.quote(name)}?{query}", piece)
        if status == 412:  # noqa: PLR2004  precondition failed
            raise OtherRunError(str(answer.get("error", "the collector has another run of that name")))
        size = answer.get("size")
        if status == 404 or not isinstance(size, int) or size < 0:  # noqa: PLR2004
            raise UsageError(f"{_UNREADABLE}: {self._client.url} is no collector")
        self._alive_s = time.monotonic()
        self._pass_on(answer)
        return size

    def _ask_sizes(self) -> None:
        """Learn how many bytes of each shard the collector has, if that is not known."""
        if self._is_known:
            return
        _, answer = self._client.ask("GET", self._where())
        sizes, theirs = _sizes_of(answer.get("shards")), answer.get("run_id")
        if theirs and self._run_id and theirs != self._run_id:
            raise OtherRunError(f"the run {self.run} at the collector is another one")
        self._there, self._is_known = sizes, True

    def _stay(self, *, sent: bool) -> None:
        """Say that we are there, so that the run counts as live."""
        if sent or time.monotonic() - self._alive_s < (ALIVE_S if self._recording is None else ASK_S):
            return
        self._alive_s = time.monotonic()
        query = urllib.parse.urlencode(self._can())
        status, answer = self._client.ask("POST", f"{self._where()}/alive" + (f"?{query}" if query else ""), b"")
        self._pass_on(answer)
        if status == 404:  # noqa: PLR2004
            self._say(f"the collector has no run {self.run} any more: it is sent again")
            self._forget()

    def _can(self) -> dict[str, str]:
        """What the collector is told if the ranks can be asked to set their recordings aside."""
        return {} if self._recording is None else {"dumps": "1"}

    def _pass_on(self, answer: dict[str, Any]) -> None:
        """Tell the ranks if somebody at the collector wants what their flight recorders have, and the collector that they know.

        Raises:
            OSError: the collector does not answer; it asks again.
        """
        asked = answer.get("dump")
        if self._recording is None or not isinstance(asked, dict):
            return
        number, why = str(asked.get("request", ""))[:40], str(asked.get("why", ""))
        if number != self._asked:
            try:
                request_dump(self._recording, why)
            except OSError as error:
                self._say_once(f"the ranks cannot be asked at {self._recording}: {error.strerror}")
                return
            self._asked = number
            self._say(f"{self.run}: {why}; its ranks set aside what they have, in {self._recording.parent}")
        self._client.ask("POST", f"{self._where()}/dump/{urllib.parse.quote(number, safe='')}", b"")

    def _where(self) -> str:
        return f"/v1/runs/{urllib.parse.quote(self.run or '', safe='')}"

    def _say_once(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self._say(words)

    def run_until(self, is_over: Callable[[], bool]) -> bool:
        """Send until `is_over`, and then what is left; returns whether all of it is there.

        Goes on through failures of the network and of the collector, and says when they begin and end.

        Raises:
            UsageError: the collector refuses what it is sent.
        """
        wait_s, trouble, was_over, idle = _FIRST_WAIT_S, "", False, 0
        while True:
            over = is_over()
            try:
                if over and not was_over:
                    self._set_goal()
                was_over = over
                idle = 0 if self.send_new(is_last=over) else idle + 1
                if over and self._is_known:
                    self._is_known = False
                    self._ask_sizes()  # what counts is what it says that it has
                if trouble:
                    self._say(f"{self.run}: it goes on")
                wait_s, trouble = _FIRST_WAIT_S, ""
                if over and not self.missing():
                    return True
                if over and idle > _MAX_IDLE:  # what is missing is not in the files any more
                    return False
            except OSError as error:
                self._is_known = False
                reason = str(error) if isinstance(error, WaitError) else f"{error.strerror or error}: {error.filename}"
                if reason != trouble:
                    self._say(reason if over else f"{reason}; trying again")
                trouble = reason
                if over and wait_s >= _LONGEST_WAIT_S:
                    return False
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                continue
            time.sleep(POLL_S)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_NBYTES)


def _sizes_of(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not all(isinstance(size, int) and size >= 0 for size in value.values()):
        raise UsageError(_UNREADABLE)
    return dict(value)


def be_modest() -> None:
    """Take the processor only when nobody else wants it."""
    with contextlib.suppress(OSError):
        os.nice(15)
