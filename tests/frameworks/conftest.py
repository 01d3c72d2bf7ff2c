"""These tests need TensorFlow, Keras and JAX: `make test-frameworks` has them, other environments go without."""

from importlib.util import find_spec

collect_ignore_glob = [] if all(map(find_spec, ("tensorflow", "keras", "jax", "torch"))) else ["*"]
