"""Whether TensorFlow and torch are here, said in one sentence; imported before anything that needs them."""

from importlib.util import find_spec


def check() -> None:
    """Raise where TensorFlow, or torch, whose transports move the bytes, is missing.

    Raises:
        ImportError: one is.
    """
    if find_spec("tensorflow") is None:
        raise ImportError(
            "horovod.tensorflow needs TensorFlow, which is not installed: pip install 'tlkit[tensorflow]' (tensorflow-cpu or "
            "tensorflow, 2.16 or newer)"
        )
    if find_spec("torch") is None:
        raise ImportError(
            "horovod.tensorflow needs PyTorch as well, whose transports send the bytes between the ranks: pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu (190 MB to load; no CUDA is needed)"
        )


check()
