"""What a forked process has in place of its parent's control plane: nothing that could hang."""

from typing import Any, NoReturn

from ..errors import HorovodInternalError
from .tensor_table import TensorTable


class Forked:
    """Refuses whatever would need the other ranks, in one sentence."""

    def __init__(self, tensor_table: TensorTable, why: str) -> None:
        """Take the place of a control plane.

        Args:
            tensor_table: the parent's; what is known of names may be looked up.
            why: what whoever asks is told.
        """
        self.tensor_table = tensor_table
        self.aborted = False
        self.why = why
        """What whoever asks is told."""

    def submit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse.

        Raises:
            HorovodInternalError: always.
        """
        raise HorovodInternalError(self.why)

    def submit_again(self, *_: Any) -> NoReturn:
        """Refuse.

        Raises:
            HorovodInternalError: always.
        """
        raise HorovodInternalError(self.why)

    def wait(self, *_: Any) -> NoReturn:
        """Refuse.

        Raises:
            HorovodInternalError: always.
        """
        raise HorovodInternalError(self.why)
