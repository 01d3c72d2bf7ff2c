"""The words of the toolkit: categories, lanes, and the names of activities.

Every layer imports these constants instead of spelling strings, so that a word means the same in a shard, in a table,
in a report and on a page.  Knows nothing of files, clocks or torch.
"""

from enum import StrEnum
from typing import Final


class Category(StrEnum):
    """The closed set of things a moment of a step can be spent on."""

    DATA = "data"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    NEGOTIATE = "negotiate"
    QUEUE = "queue"
    FUSION = "fusion"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


#: Categories that occupy the compute lane: while one of them runs, communication of the same rank is hidden.
COMPUTE_CATEGORIES: Final = (
    Category.DATA,
    Category.H2D,
    Category.FORWARD,
    Category.BACKWARD,
    Category.OPTIMIZER,
    Category.CHECKPOINT,
)

#: Categories of communication, innermost first: a copy inside a collective counts as `fusion`.
COMMUNICATION_CATEGORIES: Final = (
    Category.FUSION,
    Category.COLLECTIVE,
    Category.QUEUE,
    Category.NEGOTIATE,
)


class CostlySetting(StrEnum):
    """What makes a training slow as long as it is on, and shows in a trace as slow work alone."""

    AUTOGRAD_ANOMALY = "autograd-anomaly"
    PYTHON_TRACING = "python-tracing"
    TRACEMALLOC = "tracemalloc"
    TORCH_PROFILER = "torch-profiler"
    LAUNCH_BLOCKING = "launch-blocking"
    DISTRIBUTED_DEBUG = "distributed-debug"
    EAGER_FUNCTIONS = "eager-functions"
    DOUBLE_PRECISION = "double-precision"
    UNTRAINED_GRADIENTS = "untrained-gradients"
    MOSTLY_ZERO_GRADIENTS = "mostly-zero-gradients"
    COMPUTED_AGAIN = "computed-again"
    BACKWARD_AGAIN = "backward-again"
    ZERO_GRADIENTS = "zero-gradients"


class LaneKind(StrEnum):
    """What a row of a trace is about."""

    STEPS = "steps"
    COMPUTE = "compute"
    DATA = "data loading"
    WORKER = "data worker"
    COMMUNICATION = "communication"
    TENSOR = "tensor"
    HOST = "host"
    """A thread that hands out work to a device."""
    CODE = "code"
    """Where in the code the training thread was found, now and then; no work of its own."""
    WORKER_CODE = "code of workers"
    """The same of data loader workers while they make batches; all of a rank's on one lane."""
    THREAD_CODE = "code of threads"
    """The same of the busiest other thread of the process, for as long as it ran."""
    OTHER = "other"


#: Thread ids of the lanes in our shards; worker k of the data loader is `WORKER_TID + k`.
LANE_TIDS: Final = {
    LaneKind.STEPS: 0,
    LaneKind.COMPUTE: 1,
    LaneKind.DATA: 2,
    LaneKind.COMMUNICATION: 3,
    LaneKind.OTHER: 4,
    LaneKind.HOST: 5,
    LaneKind.CODE: 6,
    LaneKind.WORKER_CODE: 7,
    LaneKind.THREAD_CODE: 8,
}
WORKER_TID: Final = 10

STEP: Final = "STEP"
FORWARD: Final = "FORWARD"
BACKWARD: Final = "BACKWARD"
FORWARD_BACKWARD: Final = "FORWARD_BACKWARD"
"""Both, where a compiled step does not tell where one ends; category `forward`."""
OPTIMIZER_STEP: Final = "OPTIMIZER_STEP"
SYNCHRONIZE: Final = "SYNCHRONIZE"
"""The compute lane blocked until collectives finish.  Category `other`: what it waits for decides the attribution."""
OBJECT_CALL: Final = "OBJECT"
"""A Python object is sent around: pickling it, the collectives that carry it, reading it back.  Category `other`."""
DATA_WAIT: Final = "DATA_WAIT"
"""The training loop asks the loader for a batch and gets it."""
WORKER_START: Final = "WORKER_START"
"""The loop makes an iterator, which starts worker processes."""
EPOCH_START: Final = "EPOCH_START"
"""The loop begins with a loader again whose workers have stayed: the sampler draws, the first batches are asked for."""
DATA_FETCH: Final = "DATA_FETCH"
"""One batch made, in a worker or in the main process; holds DATASET and COLLATE."""
DATASET: Final = "DATASET"
COLLATE: Final = "COLLATE"
H2D_COPY: Final = "H2D_COPY"
CHECKPOINT: Final = "CHECKPOINT"
CYCLE_START: Final = "CYCLE_START"
CYCLE_COUNTER: Final = "cycle ms"
"""How long a cycle of Horovod's background thread took, where its timeline marks them."""

#: Counters of the training thread, by phase; each value belongs to the span that ends at its time.
CPU_COUNTERS: Final = {category: f"{category} cpu_ns" for category in Category}
"""How long the thread has run."""
STARVED_COUNTERS: Final = {category: f"{category} starved_ns" for category in Category}
"""How long it was ready to run and had no core.  Those of `other` belong to the step that ends: what is in none of its phases."""
PROCESS_CPU_COUNTER: Final = "step process_cpu_ns"
"""How long all threads of the process have run in the step that ends."""
INPUT_COUNTER: Final = "input elements"
"""Elements of the tensors handed to the outermost module's forward; at the beginning of the span."""
LOSS_COUNTER: Final = "loss of backward %"
"""How much of backward goes through what the script computes outside of modules, in some steps."""
PROCESS_CPU: Final = "process cpu %"
"""Of one core: 200 for two."""
HOST_CPU: Final = "host cpu %"
"""Of all cores of the host."""
HOST_CORES: Final = "host cores"
OPERATOR_THREADS: Final = "operator threads"
"""That compute one operator together; of ranks that use more than one."""
OWN_CORES: Final = "cores of the process"
"""That the training thread may use."""
FIRST_CORE: Final = "first core of the process"
LAST_CORE: Final = "last core of the process"
"""Their numbers, of ranks that may not use all cores of the host."""
GPU_CLOCK: Final = "gpu sm clock MHz"
GPU_THROTTLED: Final = "gpu throttled"
"""1 while the device is slowed down by heat, a power brake or the host."""
GPU_LOST: Final = "gpu lost"
"""1 once the device has fallen off the bus."""
GPU_REASON: Final = "gpu slowed by "
"""And why, as `gpu slowed by heat`: 1 while the device says so."""
GPU_CLOCK_OFF: Final = "gpu clock uncertainty ns"
"""How far the times of the device's spans may be off those of the host, at worst."""
GPU_XID: Final = "gpu xid"
"""The number of an error that the driver has reported, when it did."""
GPU_ECC: Final = "gpu uncorrected memory errors"
"""Since the recording began."""
GPU_SM: Final = "gpu sm activity %"
"""Share of the multiprocessors that had something to do, which utilisation does not tell: it is 100 when one is busy."""
TORCH_RETRIES: Final = "torch allocation retries"
"""How often torch's allocator has given back what it had cached, which waits for the device, and asked again; since it began."""
GARBAGE_COLLECTION: Final = "GARBAGE_COLLECTION"
"""Python's collector stops the training thread."""
COMPILATION: Final = "COMPILATION"
"""A framework compiles or traces a function."""
GRAPH_REPLAY: Final = "GRAPH_REPLAY"

QUEUE: Final = "QUEUE"
MEMCPY_IN: Final = "MEMCPY_IN_FUSION_BUFFER"
MEMCPY_OUT: Final = "MEMCPY_OUT_FUSION_BUFFER"
NEGOTIATE_PREFIX: Final = "NEGOTIATE_"

#: Kinds of collectives as executed; the name of a batch's span is the kind in capitals, as in Horovod.
COLLECTIVE_KINDS: Final = (
    "allreduce",
    "allgather",
    "broadcast",
    "alltoall",
    "reducescatter",
    "adasum",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",  # messages between two ranks, where a profiler shows them among the collectives
    "other",  # a collective whose name does not tell its kind
)

#: Point-to-point messages of torch.distributed: names of spans on the communication lane.
SEND: Final = "SEND"
RECV: Final = "RECV"
MESSAGE_DIRECTIONS: Final = {SEND: "send", RECV: "recv"}

#: Who asked for a collective; "" where that is unknown.
CALLERS: Final = (
    "gradient",  # DistributedOptimizer, DDP, FSDP: gradients of a backward pass
    "parameters",  # broadcast_parameters, broadcast_optimizer_state, buffers of DDP, FSDP's gathering of parameters
    "object",  # broadcast_object, allgather_object and their like in torch.distributed
    "norm",  # SyncBatchNorm
    "user",  # a call in the user's own code
    "barrier",
    "group",  # making a process group, which all ranks do together
    "join",
)
MIXED: Final = "mixed"
"""Tensors of several callers, or places, that travelled in one collective."""

#: Stages of a tf.data pipeline: a span named by a stage is a request for an element, answered in it or, where the stage works on
#: threads of its own, awaited in it.
STAGE: Final = "Iterator::"
STAGE_PRODUCE: Final = " (produce)"
"""Ends the name of a span in which a stage makes an element on a thread of its own."""
STAGE_FUNCTION: Final = " (function)"
"""Ends the name of a span in which the user's function of a stage runs."""
STAGE_WORK: Final = "ns a batch of "
"""Begins the name of a counter: how long all threads of a stage have worked on a batch, on average, since the last value."""
STAGE_CALLS: Final = "calls at a time of "
"""And of one that tells how many elements a stage works on at a time, where it is more than one."""

#: What a training script is written in, as timelines and remedies name it.
FRAMEWORKS: Final = ("torch", "tensorflow", "keras", "jax")

#: Bytes an element, by the dtype names that appear in traces.
DTYPE_NBYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
