"""What events of an XPlane are about, by their names: TensorFlow's operators, XLA's, kernels and collectives."""

import re
from typing import Final

from ..vocabulary import Category
from .kineto_tables import kind_of

#: Threads of tf.data's own: what they do is preparing input.
_LOADER_THREAD: Final = re.compile(r"^tf_data_(?!iterator_get_next)")
#: The training asks its input pipeline for a batch.
_WAIT: Final = re.compile(r"^(?:IteratorGetNext(?:AsOptional|Sync)?(?:Op)?::\w+|Iterator::Root)$")
#: Operators are called `scope/name:Type` by TensorFlow.
_OPERATOR: Final = re.compile(r"^[\w./\-]+:([A-Z_]\w*)$")
_OPTIMIZER_SCOPE: Final = re.compile(
    r"(?:^|/)(?:sgd|adam|adamw|adamax|nadam|rmsprop|adagrad|adadelta|adafactor|ftrl|lion|lamb|muon|lossscaleoptimizer|optax\w*)"
    r"(?:_\d+)?/",
    re.IGNORECASE,
)
_UPDATE: Final = re.compile(r"^(?:Resource(?:Sparse)?Apply|Assign(?:Sub|Add)VariableOp|ResourceScatter)")
_BACKWARD: Final = re.compile(r"(?:^|/)gradient(?:_tape|s)(?:_\d+)?/|transpose\(|(?:^|/)grad(?:ient)?s?/")
_COLLECTIVE: Final = re.compile(
    r"^(?:all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)\b"
    r"|:(?:Collective(?:Reduce|Gather|Bcast|AllToAll)|Nccl(?:All)?(?:Reduce|Gather|Broadcast)|"
    r"Horovod(?:Grouped)?(?:Allreduce|Allgather|Broadcast|Alltoall|Reducescatter))"
    r"|nccl\w*Kernel|ncclDev|rccl",
    re.IGNORECASE,
)
_NO_COLLECTIVE: Final = re.compile(r"CollectiveAssignGroup|CollectiveInitialize|-done\b")
_TO_DEVICE: Final = re.compile(r"^MemcpyH2D|HtoD|^H2D\b|TransferToDevice|infeed", re.IGNORECASE)
#: Marks of the scheduler of threads: moments, of which there are more than of everything else.
_MARK: Final = re.compile(r"^ThreadpoolListener::|^end: ")
#: Calls with which the training runs one step; what is between two of them belongs to the first.
_CALL: Final = re.compile(r"^(?:PjitFunction\((?P<jax>.*)\)|EagerLocalExecute: (?P<tf>__(?:inference|forward)_.*))$")

ITERATOR: Final = "Iterator::"
CAPTURED: Final = "InstantiatedCapturedFunction::Run"
PRODUCE: Final = re.compile(r"^\w+Produce$")
PROCESS: Final = "ExecutorState::Process"
FUNCTION_RUN: Final = "FunctionRun"


def is_loader_thread(name: str) -> bool:
    """Whether a thread is one of tf.data's own."""
    return _LOADER_THREAD.match(name) is not None


def is_wait(name: str) -> bool:
    """Whether the training waits for its input in such an event, outside of tf.data's own threads."""
    return _WAIT.match(name) is not None


def is_mark(name: str) -> bool:
    """Whether such events are moments that say nothing of what runs."""
    return _MARK.match(name) is not None


def called(name: str) -> str:
    """What such an event runs, where it is the call of a compiled function; else ""."""
    match = _CALL.match(name)
    if match is None:
        return ""
    # A function that is traced again gets another number: it is the same step.
    return match["jax"] or re.sub(r"_\d+$", "", match["tf"] or "")


def is_collective(name: str) -> bool:
    """Whether such an event is a collective at work."""
    return _COLLECTIVE.search(name) is not None and _NO_COLLECTIVE.search(name) is None


def collective_kind(name: str) -> str:
    """The kind of a collective by its name.

    >>> collective_kind("all-reduce.1"), collective_kind("x/CollectiveBcastSendV2:CollectiveBcastSendV2")
    ('allreduce', 'broadcast')
    """
    plain = name.rpartition(":")[2].replace("-", "_")
    if re.search(r"collective_?permute", plain, re.IGNORECASE):
        return "sendrecv"
    if re.search(r"Bcast|broadcast", plain, re.IGNORECASE):
        return "broadcast"
    if re.search(r"CollectiveGather", plain):
        return "allgather"
    return "allreduce" if re.search(r"CollectiveReduce(?!Scatter)", plain) else kind_of(plain)


def is_copy_to_device(name: str) -> bool:
    """Whether data goes to a device."""
    return _TO_DEVICE.search(name) is not None


def is_operator(name: str) -> bool:
    """Whether this is the name of an operator of TensorFlow at work."""
    return _OPERATOR.match(name) is not None


def phase_of(name: str) -> Category:
    """What part of a step an operator belongs to, by its name or the scope it was made in.

    >>> phase_of("gradient_tape/dense/MatMul:MatMul"), phase_of("adam/Mul:Mul"), phase_of("dense/MatMul:MatMul")
    (<Category.BACKWARD: 'backward'>, <Category.OPTIMIZER: 'optimizer'>, <Category.FORWARD: 'forward'>)
    """
    if _BACKWARD.search(name):
        return Category.BACKWARD
    if _OPTIMIZER_SCOPE.search(name) or _UPDATE.match(name.rpartition(":")[2]):
        return Category.OPTIMIZER
    return Category.FORWARD
