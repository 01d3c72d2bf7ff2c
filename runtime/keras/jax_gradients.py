"""How the gradients of Keras on JAX are reduced: by a callback out of the compiled step, in the order of the program."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from ..core import calls
from ..core.variable_names import names_of, split
from ..instrument.phases import reducing
from ..torch.arrays import array_to_tensor, tensor_to_array
from ..torch.flat import takes_part
from .backends import PlainGradients


class JaxGradients(PlainGradients):
    """For Keras on JAX, inside of compiled functions and outside."""

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See `GradientReducer`."""
        return self.reduce_if(None, gradients, variables)

    def reduce_if(self, due: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """See `GradientReducer`."""
        local, shared = split(variables, self.local)
        results = list(gradients)
        for place in local:
            results[place] = self.scale_local(gradients[place])
        if not takes_part(self.process_set):
            return results
        names = names_of(variables)
        there = [place for place in shared if gradients[place] is not None]
        # JAX's sparse arrays are dense here: what is gathered has no shape that a compiled step could know.
        dense = [g.todense() if hasattr(g, "todense") else g for g in (gradients[place] for place in there)]
        chosen = [names[place] for place in there]

        def on_the_host(is_due: Any, *arrays: Any) -> list[Any]:
            given = [np.asarray(array) for array in arrays]
            if not is_due:
                return given
            with calls.handing_on(calls.GRADIENT), reducing(self):
                reduced = self.reduce_dense(chosen, [array_to_tensor(array) for array in given])
            return [tensor_to_array(tensor, array.dtype) for tensor, array in zip(reduced, given, strict=True)]

        wanted = [jax.ShapeDtypeStruct(gradient.shape, gradient.dtype) for gradient in dense]
        reduced = io_callback(on_the_host, wanted, True if due is None else due, *dense, ordered=True) if dense else []
        for place, gradient in zip(there, reduced, strict=True):
            results[place] = gradient
        return results
