"""The connections of one rank, by rank: what is sent, to whom, and what has come."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from .channel import Channel
from .messages import Message, encode

_log = logging.getLogger("tlkit.runtime")

#: Bytes that may wait to go out before nothing more is said that could be said later.
MUCH_BACKLOG_NBYTES: Final = 1 << 20


class Links:
    """Connections to other ranks: on rank 0 to every other one, elsewhere to rank 0.

    Sending never waits: what a rank does not take stays in its channel.  How much that can be is bounded by who sends: no request
    and no batch is said while there `is_congested`.
    """

    def __init__(self, channels: Mapping[int, Channel], watch: Callable[[Channel, bool], None]) -> None:
        """Take over `channels`, by rank.

        Args:
            watch: told whether a channel has something that waits to go out, whenever that changes.
        """
        self._channels = dict(channels)
        self._by_descriptor = {channel.fileno(): rank for rank, channel in channels.items()}
        self._watch = watch
        self._waiting: set[int] = set()

    @property
    def ranks(self) -> list[int]:
        """Who is connected."""
        return list(self._channels)

    def __contains__(self, rank: int) -> bool:
        """Whether there is a connection to `rank`."""
        return rank in self._channels

    @property
    def is_congested(self) -> bool:
        """Whether so much waits to go out that nothing should be added."""
        return bool(self._waiting) and any(
            self._channels[rank].backlog_nbytes > MUCH_BACKLOG_NBYTES for rank in self._waiting
        )

    @property
    def has_backlog(self) -> bool:
        """Whether something waits to go out."""
        return bool(self._waiting)

    def send(self, rank: int, message: Message) -> None:
        """Send a message, if `rank` is connected."""
        self.send_encoded(rank, encode(message))

    def send_to_all(self, message: Message) -> None:
        """Send a message to all ranks."""
        payload = encode(message)
        for rank in list(self._channels):
            self.send_encoded(rank, payload)

    def send_encoded(self, rank: int, payload: bytes) -> None:
        """Send a message that is encoded already."""
        channel = self._channels.get(rank)
        if channel is None:
            return
        try:
            channel.post(payload)
        except OSError as error:
            # Reading will say so too, after what the rank has said before.
            _log.debug("rank %d no longer accepts messages: %s", rank, error)
        if channel.backlog_nbytes and rank not in self._waiting:
            self._waiting.add(rank)
            self._watch(channel, True)  # noqa: FBT003  a callable

    def flush(self, descriptor: int) -> None:
        """A connection takes more."""
        rank = self._by_descriptor.get(descriptor)
        if rank is None:
            return
        channel = self._channels[rank]
        try:
            channel.flush()
        except OSError as error:
            _log.debug("rank %d no longer accepts messages: %s", rank, error)
            channel.drop_backlog()
        if not channel.backlog_nbytes and rank in self._waiting:
            self._waiting.discard(rank)
            self._watch(channel, False)  # noqa: FBT003

    def receive(self, descriptor: int) -> tuple[int, list[Message]]:
        """Who has said something, and what.

        Raises:
            LostRank: the connection has ended, or what came over it makes no sense.
        """
        rank = self._by_descriptor[descriptor]
        try:
            return rank, self._channels[rank].receive()
        except BlockingIOError:
            return rank, []
        except (OSError, ValueError) as error:
            raise LostRank(rank, str(error)) from error

    def take_kept(self) -> list[tuple[int, Message]]:
        """Messages that arrived before they were awaited."""
        return [(rank, message) for rank, channel in self._channels.items() for message in channel.take_kept()]

    def drop(self, rank: int) -> Channel | None:
        """Forget a connection; returns it for the caller to close."""
        channel = self._channels.pop(rank, None)
        if channel is not None:
            self._waiting.discard(rank)
            self._by_descriptor = {number: other for number, other in self._by_descriptor.items() if other != rank}
        return channel

    def channels(self) -> list[Channel]:
        """All connections."""
        return list(self._channels.values())


class LostRank(Exception):
    """The connection to a rank has ended."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank
