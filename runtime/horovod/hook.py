"""What the `.pth` file imports at every start of an interpreter: as little as possible.

Waits at the end of `sys.meta_path` for somebody to import `horovod`, and lets `alias` answer then.
"""

import sys


class HorovodHook:
    """Stands in for `HorovodAlias` until it is needed."""

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> object:
        """Asked for every module that nobody else has; answers for `horovod` alone."""
        del path, target
        if fullname != "horovod":
            return None
        from . import alias  # noqa: PLC0415  not before somebody asks

        sys.meta_path.remove(cls)  # type: ignore[arg-type]  # as below
        finder = alias.install()
        return finder.find_spec(fullname, None) if finder is not None else None


def install() -> None:
    """Wait for `horovod`."""
    sys.meta_path.append(HorovodHook)  # type: ignore[arg-type]  # naming the type would import it
