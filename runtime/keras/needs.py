"""Whether Keras 3 and torch are here, said in one sentence; imported before anything that needs them."""

from importlib.util import find_spec


def check() -> None:
    """Raise where Keras 3, or torch, whose transports move the bytes, is missing.

    Raises:
        ImportError: one is.
    """
    if find_spec("keras") is None:
        raise ImportError(
            "horovod.keras needs Keras 3, which is not installed: pip install 'tlkit[tensorflow]' (or pip install keras)"
        )
    if find_spec("torch") is None:
        raise ImportError(
            "horovod.keras needs PyTorch as well, whose transports send the bytes between the ranks: pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu (190 MB to load; no CUDA is needed)"
        )
    import keras  # noqa: PLC0415  once it is known to be there

    if int(keras.__version__.partition(".")[0]) < 3:  # noqa: PLR2004  a version
        raise ImportError(f"horovod.keras is for Keras 3, and {keras.__version__} is installed: pip install -U keras")


check()
