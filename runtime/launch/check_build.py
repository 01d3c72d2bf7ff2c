"""What this installation can do, in the form that scripts know from `horovodrun --check-build`."""

from importlib.util import find_spec
from pathlib import Path

from ... import __version__


def describe_build() -> str:
    """The table of frameworks, controllers and operations."""
    has_torch = find_spec("torch") is not None
    has_mpi = has_torch and find_spec("mpi4py") is not None
    # A torch for CUDA brings NCCL as a package of its own, or has it built in beside its CUDA libraries.
    has_nccl = has_torch and (_has("nvidia.nccl") or _has_library("libtorch_cuda.so"))

    def block(title: str, entries: list[tuple[str, bool]]) -> str:
        return title + "\n" + "\n".join(f"    [{'X' if there else ' '}] {name}" for name, there in entries)

    return "\n\n".join(
        [
            f"tlkit v{__version__} (Horovod v0.28.1 API):",
            block(
                "Available Frameworks:",
                [
                    ("TensorFlow", has_torch and find_spec("tensorflow") is not None),
                    ("PyTorch", has_torch),
                    ("MXNet", False),
                    ("Keras", has_torch and find_spec("keras") is not None),
                    ("JAX", has_torch and find_spec("jax") is not None),
                ],
            ),
            block("Available Controllers:", [("MPI", has_mpi), ("Gloo", has_torch)]),
            block(
                "Available Tensor Operations:",
                [
                    ("NCCL", has_nccl),
                    ("DDL", False),
                    ("CCL", False),
                    ("MPI", has_mpi),
                    ("Gloo", has_torch),
                    ("shared memory", has_torch and _shares_memory()),
                ],
            ),
        ]
    )


def _has(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _shares_memory() -> bool:
    """Whether the part in C was compiled, as far as can be said without importing torch."""
    transport = Path(__file__).parent.parent / "torch/data_plane/transports/shared_memory"
    return any(transport.glob("_native*.so"))


def _has_library(name: str) -> bool:
    """Whether torch, which is not imported here since that takes seconds, comes with a library."""
    torch = find_spec("torch")
    return torch is not None and torch.origin is not None and (Path(torch.origin).parent / "lib" / name).exists()
