"""What a step computes more than once, although nothing has changed: calls of modules, and passes of backward.

A call of a module repeats an earlier one of the same step if module, inputs and weights are the same objects, none of them was
written to since, and the output is the same: a parametrization that is computed whenever a weight is read, a model that is called
once for the loss and once more for the accuracy.  A pass of backward repeats another one as far as both go through the same nodes
of autograd's graph, which the first one had to keep (`retain_graph=True`): a pass for each loss instead of one for their sum.

Looked at in the few steps in which settings are (costly_settings.py), since each call of a module then costs some microseconds.
"""

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...timeline.vocabulary import CostlySetting
from .compared_calls import MAX_DEPTH, NotComparableError, are_same_values, parts_of, tensor_of, values_of, versions_of

_log = logging.getLogger("tlkit.instrument")

#: Less than this share of forward and backward is not worth a word.
_MIN_SHARE: Final = 0.02
#: In a step with more calls, or in a graph with more nodes, the rest is not looked at.
_MAX_CALLS: Final = 5_000
_MAX_NODES: Final = 50_000
#: Two passes that have less than this share of their nodes in common are two passes.
_MIN_COMMON: Final = 0.1
#: Autograd's number of a node that has none: where a gradient is added to a parameter's.
_NO_NUMBER: Final = 2**64 - 1


@dataclass(slots=True)
class _Call:
    """A call of a module; later ones are compared with it."""

    module: weakref.ref[torch.nn.Module]
    inputs: tuple[weakref.ref[torch.Tensor], ...]
    versions: tuple[int, ...]
    output: tuple[float, ...]
    took_ns: int
    has_gradient: bool
    calls: range
    """Its number, and those of the calls inside of it."""
    times: int = 1
    again_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Repeat:
    """A call that repeats an earlier one."""

    calls: range
    """Its number, and those of the calls inside of it."""
    took_ns: int
    has_gradient: bool
    """Backward goes through both."""


@dataclass(slots=True)
class _Pass:
    """A pass of backward that kept its graph."""

    nodes: frozenset[int]
    took_ns: int
    is_repeated: bool = False


@dataclass(slots=True)
class _Step:
    """What one step has done so far."""

    calls: dict[tuple[Any, ...], _Call] = field(default_factory=dict)
    repeats: list[_Repeat] = field(default_factory=list)
    """None inside of another one."""
    passes: list[_Pass] = field(default_factory=list)
    forward_ns: int = 0
    backward_ns: int = 0
    backward_of_call_ns: list[int] = field(default_factory=list)
    """By the number of a call: how long backward was at what it has added to the graph, without calls inside of it."""
    at: tuple[int, int] | None = None
    """Where backward is: the number of a call, and since when."""
    began_ns: int | None = None
    """When the pass began that has not come to an output of a module yet: it is at the loss."""
    loss_ns: int = 0
    own_ns: int = 0
    """That looking has taken, which is no time of the calls around it."""
    hooked: int = -1
    """Autograd's number of the node that was hooked last."""
    pass_again_ns: float = 0.0
    repeated_passes: int = 0
    depth: int = 0
    """Of calls that are looked at: 0 between the outermost ones."""

    def goes_to(self, call: int | None) -> None:
        """Backward comes to what a call has added to the graph, or ends."""
        now_ns = time.thread_time_ns()
        if self.began_ns is not None:
            self.loss_ns += 0 if call is None else now_ns - self.began_ns
            self.began_ns = None
        if self.at is not None:
            self.backward_of_call_ns[self.at[0]] += now_ns - self.at[1]
        self.at = None if call is None else (call, now_ns)


class Repeats:
    """Compares the calls and passes of one step; all on the training thread, whose processor time is what they take."""

    def __init__(self) -> None:
        """Nothing has been called."""
        self._step = _Step()
        self._is_broken = False

    def forget(self) -> None:
        """Another step begins."""
        self._step = _Step()

    def call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module, and compare that with what the step has called before."""
        step = self._step
        asked_ns = time.thread_time_ns()
        known = None if self._is_broken else self._known(module, args, kwargs)
        number, repeats = len(step.backward_of_call_ns), len(step.repeats)
        step.backward_of_call_ns.append(0)
        step.depth += 1
        began_ns = time.thread_time_ns()
        step.own_ns += began_ns - asked_ns
        own_before_ns = step.own_ns
        try:
            output = original(module, *args, **kwargs)
        finally:
            ended_ns = time.thread_time_ns()
            took_ns = ended_ns - began_ns - (step.own_ns - own_before_ns)
            step.depth -= 1
            step.forward_ns += 0 if step.depth else took_ns
        if known is not None:
            try:
                calls = range(number, len(step.backward_of_call_ns))
                self._compare(known, output, calls, took_ns, repeats)
            except Exception:
                self._give_up()
            step.own_ns += time.thread_time_ns() - ended_ns
        return output

    def pass_through(self, original: Callable[..., Any], args: Any, kwargs: Any, *, is_grad: bool) -> Any:
        """Go backward, and compare which nodes of the graph that visits with what the step has visited before.

        Args:
            is_grad: `original` is torch.autograd.grad, not torch.autograd.backward, and its arguments stand elsewhere.
        """
        step = self._step
        nodes: frozenset[int] = frozenset()
        keeps_graph = False
        if not self._is_broken:
            try:
                roots = args[0] if args else next(iter(kwargs.values()))
                keeps_graph = _keeps_graph(args, kwargs, 3 if is_grad else 2)
                # What only one pass goes through is of no interest.
                nodes = _nodes(roots) if keeps_graph or step.passes else nodes
            except Exception:
                self._give_up()
        began_ns = time.thread_time_ns()
        step.began_ns = None if is_grad else began_ns
        try:
            result = original(*args, **kwargs)
        finally:
            step.goes_to(None)
        took_ns = time.thread_time_ns() - began_ns
        step.backward_ns += took_ns
        self._note_pass(nodes, took_ns, keeps_graph=keeps_graph)
        return result

    def found(self) -> dict[str, float]:
        """Which share of the time of forward and backward repeats what the step has done before."""
        step = self._step
        both_ns = step.forward_ns + step.backward_ns
        if not both_ns or self._is_broken:
            return {}
        again_ns = sum(
            repeat.took_ns + repeat.has_gradient * sum(step.backward_of_call_ns[repeat.calls.start : repeat.calls.stop])
            for repeat in step.repeats
        )
        shares = {
            CostlySetting.COMPUTED_AGAIN: again_ns / both_ns,
            CostlySetting.BACKWARD_AGAIN: step.pass_again_ns / both_ns,
        }
        return {str(name): min(share, 1.0) for name, share in shares.items() if share >= _MIN_SHARE}

    def details(self) -> dict[str, str]:
        """Which module is repeated most, and how often it and backward run in the step."""
        step, words = self._step, {}
        if step.calls:
            most = max(step.calls.values(), key=lambda call: call.again_ns)
            module = most.module()
            if most.again_ns and module is not None:
                words[str(CostlySetting.COMPUTED_AGAIN)] = f"{type(module).__name__}, {most.times} times"
        if step.repeated_passes:
            words[str(CostlySetting.BACKWARD_AGAIN)] = f"{step.repeated_passes + 1} passes"
        return words

    def loss_share(self) -> float:
        """How much of backward went through what the script itself, outside of modules, has made of a module's output: 0 to 1."""
        step = self._step
        return 0.0 if self._is_broken else min(step.loss_ns / max(step.backward_ns, 1), 1.0)

    def in_vain(self, is_zero: Callable[[torch.Tensor], bool]) -> tuple[float, str]:
        """Which share of forward and backward modules have to which backward brings nothing but zeros, and the largest of them.

        Args:
            is_zero: whether the gradient of a parameter is zero everywhere.
        """
        step = self._step
        took_ns: dict[str, int] = {}
        until = 0
        for call in sorted(step.calls.values(), key=lambda one: (one.calls.start, -one.calls.stop)):
            module = call.module()
            if module is None or call.calls.start < until:
                continue
            backward_ns = sum(step.backward_of_call_ns[call.calls.start : call.calls.stop])
            weights = [one for one in module.parameters() if one.requires_grad]
            if backward_ns and weights and all(map(is_zero, weights)):
                until = call.calls.stop
                name = type(module).__name__
                took_ns[name] = took_ns.get(name, 0) + call.took_ns + backward_ns
        both_ns = step.forward_ns + step.backward_ns
        if not took_ns or not both_ns or self._is_broken:
            return 0.0, ""
        return min(sum(took_ns.values()) / both_ns, 1.0), max(took_ns, key=took_ns.__getitem__)

    def _known(
        self, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], torch.nn.Module, list[torch.Tensor], tuple[int, ...]] | None:
        """What a call is known by; None if it has arguments that cannot be compared."""
        try:
            tensors: list[torch.Tensor] = []
            parts = tuple(parts_of((*args, *sorted(kwargs.items())), tensors, MAX_DEPTH))
            key = (id(module), module.training, parts, *map(id, tensors))
            if key not in self._step.calls and len(self._step.calls) >= _MAX_CALLS:
                return None
            return key, module, tensors, versions_of(module, tensors)
        except NotComparableError:
            return None
        except Exception:
            self._give_up()
            return None

    def _compare(
        self,
        known: tuple[tuple[Any, ...], torch.nn.Module, list[torch.Tensor], tuple[int, ...]],
        output: Any,
        calls: range,
        took_ns: int,
        repeats: int,
    ) -> None:
        """Count a call if it repeats an earlier one, and keep it to be compared with if not.

        Args:
            repeats: how many there were when it began; those inside of it are a part of it, or of what is drawn anew on purpose.
        """
        key, module, tensors, versions = known
        made = tensor_of(output)
        values = None if made is None else values_of(made, module)
        if made is None or values is None:
            return
        self._hook(made, calls.start)
        before = self._step.calls.get(key)
        has_gradient = made.grad_fn is not None
        inputs = tuple(map(weakref.ref, tensors))
        now = _Call(weakref.ref(module), inputs, versions, values, took_ns, has_gradient, calls)
        if before is None or not _is_same(before, now):
            self._step.calls[key] = now
            return
        del self._step.repeats[repeats:]
        if not are_same_values(before.output, now.output, module):
            return
        before.times += 1
        again_ns = min(took_ns, before.took_ns)
        before.again_ns += again_ns
        self._step.repeats.append(_Repeat(calls, again_ns, has_gradient and before.has_gradient))
        before.has_gradient = before.has_gradient or has_gradient

    def _hook(self, made: torch.Tensor, call: int) -> None:
        """Have backward tell when it comes to an output, unless a call inside of this one has made it."""
        node: Any = made.grad_fn
        if node is None:
            return
        step, number = self._step, node._sequence_nr()  # noqa: SLF001  there is no other way to ask
        if number != step.hooked:
            step.hooked = number
            node.register_prehook(lambda _: step.goes_to(call))

    def _note_pass(self, nodes: frozenset[int], took_ns: int, *, keeps_graph: bool) -> None:
        for earlier in self._step.passes:
            common = len(nodes & earlier.nodes) / max(len(earlier.nodes), 1)
            if not earlier.is_repeated and common >= _MIN_COMMON:
                earlier.is_repeated = True
                self._step.pass_again_ns += common * earlier.took_ns
                self._step.repeated_passes += 1
        if keeps_graph and nodes:
            self._step.passes.append(_Pass(nodes, took_ns))

    def _give_up(self) -> None:
        """Whatever a model is made of, the training goes on."""
        self._is_broken = True
        _log.debug("what is computed again cannot be looked at", exc_info=True)


def _is_same(before: _Call, now: _Call) -> bool:
    """Whether inputs and weights are what they were; tensors that are gone are not, whoever has their place now."""
    return (
        before.versions == now.versions
        and before.module() is now.module()
        and all(old() is new() for old, new in zip(before.inputs, now.inputs, strict=True))
    )


def _keeps_graph(args: Sequence[Any], kwargs: dict[str, Any], position: int) -> bool:
    """Whether a pass keeps the graph for another one, and not in order to be differentiated itself."""
    keeps = kwargs.get("retain_graph", args[position] if len(args) > position else None)
    is_differentiated = kwargs.get("create_graph", args[position + 1] if len(args) > position + 1 else False)
    return bool(keeps) and not is_differentiated


def _nodes(roots: Any) -> frozenset[int]:
    """The numbers of the nodes that a pass from some tensors can visit; autograd gives each node one of its own.

    Raises:
        TypeError: these are no tensors.
    """
    tensors = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    numbers: set[int] = set()
    while waiting and len(numbers) < _MAX_NODES:
        node = waiting.pop()
        number = node._sequence_nr()  # noqa: SLF001  there is no other way to ask
        if number in numbers or number == _NO_NUMBER:
            continue
        numbers.add(number)
        waiting += [following for following, _ in node.next_functions if following is not None]
    return frozenset(numbers)
