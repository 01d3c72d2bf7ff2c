"""The import hook of `import horovod`, which the `.pth` file in site-packages installs at every start of an interpreter.

The build copies this file into site-packages under the name `_tlkit_horovod`, so that an interpreter starts without loading any
module of tlkit, and `import tlkit` still finds whichever checkout `sys.path` names.  It imports nothing but `sys`.
"""

import sys


class HorovodHook:
    """Takes the place of `HorovodAlias` until `horovod` is imported."""

    @classmethod
    def find_spec(cls, fullname: str, path: object = None, target: object = None) -> object:
        """Called for every module that no other finder has; returns a spec for `horovod` only."""
        del path, target
        if fullname != "horovod":
            return None
        sys.meta_path.remove(cls)  # type: ignore[arg-type]  # as below
        try:
            from tlkit.runtime.horovod import alias  # noqa: PLC0415  only when `horovod` is imported
        except ImportError:  # the file has outlived the package
            return None
        finder = alias.install()
        return finder.find_spec(fullname, None) if finder is not None else None


def install() -> None:
    """Append the hook to the finders."""
    sys.meta_path.append(HorovodHook)  # type: ignore[arg-type]  # naming the type would import it
