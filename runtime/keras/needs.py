"""Whether Keras and torch are here, said in one sentence; imported before anything that needs them."""

import os
from importlib.util import find_spec


def check() -> None:
    """Raise where Keras 3 (or Keras 2, where that is asked for), or torch, whose transports move the bytes, is missing.

    Raises:
        ImportError: one is.
    """
    asks_for_2 = os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"}
    if asks_for_2 and find_spec("tf_keras") is None:
        raise ImportError(
            "TF_USE_LEGACY_KERAS asks for Keras 2, which is not installed: pip install tf-keras (of TensorFlow's version), or "
            "unset the variable for Keras 3"
        )
    if not asks_for_2 and find_spec("keras") is None:
        raise ImportError(
            "horovod.keras needs Keras 3, which is not installed: pip install 'tlkit[tensorflow]' (or pip install keras)"
        )
    if find_spec("torch") is None:
        raise ImportError(
            "horovod.keras needs PyTorch as well, whose transports send the bytes between the ranks: pip install torch "
            "--index-url https://download.pytorch.org/whl/cpu (190 MB to load; no CUDA is needed)"
        )
    if asks_for_2:
        return
    import keras  # noqa: PLC0415  once it is known to be there

    if int(keras.__version__.partition(".")[0]) < 3:  # noqa: PLR2004  a version
        raise ImportError(
            f"horovod.keras is for Keras 3, and {keras.__version__} is installed: pip install -U keras (or set "
            "TF_USE_LEGACY_KERAS=1 with tf-keras installed)"
        )


check()
