"""What this installation can do, in the form that scripts know from `horovodrun --check-build`."""

from importlib.util import find_spec

from ... import __version__


def describe_build() -> str:
    """The table of frameworks, controllers and operations."""
    has_torch = find_spec("torch") is not None

    def block(title: str, entries: list[tuple[str, bool]]) -> str:
        return title + "\n" + "\n".join(f"    [{'X' if there else ' '}] {name}" for name, there in entries)

    return "\n\n".join(
        [
            f"tlkit v{__version__} (Horovod v0.28.1 API):",
            block("Available Frameworks:", [("TensorFlow", False), ("PyTorch", has_torch), ("MXNet", False)]),
            block("Available Controllers:", [("MPI", False), ("Gloo", has_torch)]),
            block(
                "Available Tensor Operations:",
                [("NCCL", False), ("DDL", False), ("CCL", False), ("MPI", False), ("Gloo", has_torch)],
            ),
        ]
    )
