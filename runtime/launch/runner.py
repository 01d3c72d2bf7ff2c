"""What Horovod has as `horovod.runner`."""

from .programmatic import run

__all__ = ["run"]
