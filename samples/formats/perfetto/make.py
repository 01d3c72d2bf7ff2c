"""Writes phases.pftrace with Perfetto's own package (`pip install perfetto`): slices that nest, annotations, a counter."""

from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

PROCESS, THREAD, LOAD, SEQUENCE = 10, 11, 12, 7

builder = TraceProtoBuilder()

packet = builder.add_packet()
packet.timestamp = 1_000
packet.track_descriptor.uuid = PROCESS
packet.track_descriptor.process.pid = 4000
packet.track_descriptor.process.process_name = "python train.py"

packet = builder.add_packet()
packet.track_descriptor.uuid = THREAD
packet.track_descriptor.parent_uuid = PROCESS
packet.track_descriptor.thread.pid = 4000
packet.track_descriptor.thread.tid = 4001
packet.track_descriptor.thread.thread_name = "MainThread"

packet = builder.add_packet()
packet.track_descriptor.CopyFrom(TrackDescriptor(uuid=LOAD, parent_uuid=PROCESS, name="load"))
packet.track_descriptor.counter.unit_name = "%"


def event(at_ns: int, kind: "TrackEvent.Type.ValueType", name: str = "", track: int = THREAD) -> TrackEvent:
    """An event on a track."""
    packet = builder.add_packet()
    packet.timestamp = at_ns
    packet.trusted_packet_sequence_id = SEQUENCE
    packet.track_event.type = kind
    packet.track_event.track_uuid = track
    if name:
        packet.track_event.name = name
    return packet.track_event


for step in range(3):
    begin = 10_000_000 * step
    marked = event(begin + 5_000, TrackEvent.TYPE_SLICE_BEGIN, "step")
    note = marked.debug_annotations.add()
    note.name = "number"
    note.int_value = step
    event(begin + 100_000, TrackEvent.TYPE_SLICE_BEGIN, "forward").categories.append("forward")
    event(begin + 3_100_000, TrackEvent.TYPE_SLICE_END)
    event(begin + 3_200_000, TrackEvent.TYPE_SLICE_BEGIN, "backward").categories.append("backward")
    event(begin + 9_200_000, TrackEvent.TYPE_SLICE_END)
    event(begin + 9_900_000, TrackEvent.TYPE_SLICE_END)
    event(begin + 9_950_000, TrackEvent.TYPE_COUNTER, track=LOAD).double_counter_value = 50.0 + step

Path(__file__).with_name("phases.pftrace").write_bytes(builder.serialize())
