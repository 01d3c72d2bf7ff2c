"""HTTP connections that cannot be held: a header that does not come, an answer that is not read, too many at once.

uvicorn waits for a header as long as somebody sends a byte now and then, and discards without end what is sent after an answer.
Here each of these has a limit, and where there are too many connections, the one goes whose request has been coming longest: an
honest request is there within milliseconds, so it never is the one.
"""

import asyncio
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: A header has to arrive within this time, on a connection that is kept open as well.
HEADER_S: Final = 10.0
#: Bytes of a header.
MAX_HEADER_NBYTES: Final = 32 * 1024
#: An answer that nobody reads is given up.
STALLED_S: Final = 30.0
#: Whoever is refused before his body is read may send on for so long, so that he reads the answer.
LINGER_S: Final = 2.0
MAX_LINGER_NBYTES: Final = 2 * 1024 * 1024
MAX_CONNECTIONS: Final = 500


class Connection(H11Protocol):
    """One connection, with limits."""

    arriving: ClassVar[dict["Connection", None]] = {}
    """Connections whose next request is not complete, the one that waits longest first."""

    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _may_linger_nbytes = MAX_LINGER_NBYTES

    def connection_made(self, transport: Any) -> None:
        """It was opened."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=1, low=0)  # whatever is not read is noticed
        self._expect(HEADER_S)
        if len(self.connections) > MAX_CONNECTIONS:
            longest = next(iter(self.arriving))
            self.arriving.pop(longest)
            longest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It was closed."""
        self._set_deadline(None)
        self._set_stalled(is_stalled=False)
        self.arriving.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        if self._is_discarding:
            self._may_linger_nbytes -= len(data)
            if self._may_linger_nbytes < 0:
                self.transport.abort()
                return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """The answer was given; the next request may come."""
        super().on_response_complete()  # which may begin with the next request, if it has come already
        if self._is_discarding:
            self._expect(LINGER_S)
        elif self.conn.their_state is h11.IDLE:
            self._expect(HEADER_S)
        else:
            self.arriving.setdefault(self)
            self._look()

    def pause_writing(self) -> None:
        """The other side does not read."""
        super().pause_writing()
        self._set_stalled(is_stalled=True)

    def resume_writing(self) -> None:
        """It reads."""
        super().resume_writing()
        self._set_stalled(is_stalled=False)

    @property
    def _is_discarding(self) -> bool:
        """Whether what comes is the rest of a body whose request was answered."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        return is_answered and self.conn.their_state is h11.SEND_BODY

    def _look(self) -> None:
        """See how far the request has come."""
        state = self.conn.their_state
        if state is not h11.IDLE and not self._is_discarding:
            self._set_deadline(None)  # of the body, the application's side takes care
        if state in {h11.DONE, h11.MUST_CLOSE}:
            self.arriving.pop(self, None)

    def _expect(self, within_s: float) -> None:
        self.arriving.setdefault(self)
        self._set_deadline(within_s)

    def _set_deadline(self, within_s: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if within_s is None else self.loop.call_later(within_s, self.transport.abort)

    def _set_stalled(self, *, is_stalled: bool) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort) if is_stalled else None
