"""What an engine records of its rank: a timeline, or what the flight recorder keeps."""

import logging
from collections.abc import Callable

from ...timeline.errors import TraceError
from ...timeline.record import recorder
from ...timeline.record.flight import DEFAULT_KEEP as FLIGHT_KEEP
from ...timeline.record.flight import path_in
from ...timeline.record.horovod_format import HorovodFormat
from ...timeline.record.sampled_format import NO_STEP, format_for
from ...timeline.record.shard_file import check_base, restart_path, shard_path
from ...timeline.record.shard_format import ShardHeader
from ...timeline.record.shard_writer import ShardWriter
from .binding import Binding
from .config import Config
from .control.service import ControlPlane
from .flight import CALL, Flight

_log = logging.getLogger("tlkit.runtime")


class RankTimeline:
    """The recording of one rank."""

    def __init__(
        self, config: Config, binding: Binding, control: ControlPlane, make_header: Callable[[], ShardHeader]
    ) -> None:
        """Begin with none.

        Args:
            make_header: says who records.
        """
        self._config = config
        self._binding = binding
        self._control = control
        self._make_header = make_header
        self._stop_sampler: Callable[[], None] | None = None
        self._flight: Flight | None = None

    def begin(self, restarts: int) -> None:
        """Record what the settings ask for.  Whatever goes wrong with that, training goes on.

        Args:
            restarts: how often the ranks have met before; what they recorded then is kept.
        """
        config = self._config
        path = config.timeline_path
        if path is not None:
            try:
                self.start(str(restart_path(path, restarts)), mark_cycles=config.mark_cycles)
            except TraceError as error:
                _log.error("Error opening the Horovod Timeline file %s, will not write a timeline: %s", path, error)
        elif config.flight_recorder and config.timeline is None:
            try:
                self._start_flight_recorder(config.flight_recorder, restarts)
            except TraceError as error:
                _log.error("%s; the flight recorder is off", error)

    def start(self, path: str, *, mark_cycles: bool) -> None:
        """Write this rank's shard from now on.

        Raises:
            TraceError: the file cannot be written.
        """
        check_base(path)
        header = self._make_header()
        target = shard_path(path, header.rank)
        running = recorder.timeline()
        if running is not None and running.wanted == target:
            _log.info("the timeline %s is being written already", target)
            return
        as_horovod = self._config.timeline_format == "horovod"
        if as_horovod and header.rank:
            self._control.node.records_elsewhere = True
            return
        make_format = HorovodFormat if as_horovod else format_for(self._config.sampling)
        keep = None if as_horovod else self._config.keep
        writer = ShardWriter(target, header, make_format=make_format, keep=keep)
        writer.pending = self._control.tensor_table.pending
        self._end_flight()
        recorder.start_timeline(writer)
        self._control.node.mark_cycles = mark_cycles
        if not as_horovod:
            self._start_sampling(header.local_rank)

    def _start_flight_recorder(self, folder: str, restarts: int) -> None:
        """Record the newest of this rank into a folder (see `Flight`)."""
        header = self._make_header()
        target = shard_path(path_in(folder, restarts), header.rank)
        keep = self._config.keep or FLIGHT_KEEP
        writer = ShardWriter(target, header, make_format=format_for(self._config.sampling), keep=keep)
        writer.pending = self._control.tensor_table.pending
        flight = self._flight = Flight(folder, writer, header.rank, self._control.raise_alarm)
        self._control.node.alarms.on_alarm = flight.set_aside
        self._start_sampling(header.local_rank)

    def raise_alarm(self, why: str) -> bool:
        """Have all ranks set aside what their flight recorders have; False if none is on."""
        if self._flight is not None:
            self._control.raise_alarm(CALL, why)
        return self._flight is not None

    def stop(self, reason: str = "") -> None:
        """Finish this rank's shard.  Nothing to do if none is written.

        Args:
            reason: why the job has failed; "" if it has not.
        """
        self._control.node.records_elsewhere = False
        self._stop_sampling()
        self._end_flight(reason)
        recorder.stop_timeline()

    def _end_flight(self, reason: str = "") -> None:
        flight, self._flight = self._flight, None
        if flight is not None:
            recorder.stop_timeline()
            flight.finish(reason)

    def _start_sampling(self, local_rank: int) -> None:
        only_load = self._config.sampling == NO_STEP
        if self._config.sample_interval_s and (local_rank == 0 or not only_load):
            self._stop_sampling()
            self._stop_sampler = self._binding.sample(self._config.sample_interval_s, local_rank, only_load=only_load)

    def _stop_sampling(self) -> None:
        stop, self._stop_sampler = self._stop_sampler, None
        if stop is not None:
            stop()
