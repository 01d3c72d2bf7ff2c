"""Which framework the training script is written in: timelines say it, so that remedies are in its words.

A binding says so when it is started; nobody who says nothing is torch.  A process that uses several is of the one that said so
last: Keras on TensorFlow is Keras.
"""

from collections.abc import Mapping

from ...timeline.vocabulary import FRAMEWORKS


class _Used:
    name = "torch"
    versions: Mapping[str, str] = {}


def use_framework(name: str, versions: Mapping[str, str]) -> None:
    """Say what the training script of this process is written in, before its timeline begins.

    Args:
        name: one of FRAMEWORKS.
        versions: what the timeline names beside torch, by package.

    Raises:
        ValueError: there is no such framework.
    """
    if name not in FRAMEWORKS:
        raise ValueError(f"{name!r} is none of {', '.join(FRAMEWORKS)}")
    _Used.name, _Used.versions = name, dict(versions)


def used_framework() -> tuple[str, Mapping[str, str]]:
    """Name and versions of what was said, `torch` if nothing was."""
    return _Used.name, _Used.versions
