"""Whether JAX and torch are here, said in one sentence; imported before anything that needs them."""

from importlib.util import find_spec


def check() -> None:
    """Raise where JAX, or torch, whose transports move the bytes, is missing.

    Raises:
        ImportError: one is.
    """
    if find_spec("jax") is None:
        raise ImportError("tlkit.runtime.jax needs JAX, which is not installed: pip install 'tlkit[jax]'")
    if find_spec("torch") is None:
        raise ImportError(
            "tlkit.runtime.jax needs PyTorch as well, whose transports send the bytes between the ranks: pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu (190 MB to load; no CUDA is needed)"
        )
