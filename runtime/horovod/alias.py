"""`import horovod.torch as hvd` without Horovod: a finder that is asked last.

It is asked last (`hook.py`), so it answers only for names that nothing else provides: an installed Horovod is never
shadowed.  TLKIT_HOROVOD_ALIAS=0 keeps it out.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from types import CodeType, ModuleType
from typing import Any, Final

#: Version of Horovod whose API this is.
API_VERSION: Final = "0.28.1"

_OWN: Final = __name__.rpartition(".")[0].rpartition(".")[0]  # tlkit.runtime

#: Modules that stand for others.
_STANDS_FOR: Final = {
    "horovod.torch": f"{_OWN}.torch",
    "horovod.tensorflow": f"{_OWN}.tensorflow",
    # Keras is one library whoever imports it, and tf.keras is another name of it: Keras 3, or 2 with TF_USE_LEGACY_KERAS=1.
    "horovod.tensorflow.keras": f"{_OWN}.keras",
    "horovod.keras": f"{_OWN}.keras",
    "horovod._keras": f"{_OWN}.keras",
    "horovod.common.exceptions": f"{_OWN}.core.errors",
    "horovod.common.elastic": f"{_OWN}.core.elastic",
    "horovod.common.process_sets": f"{_OWN}.horovod.process_sets",
    "horovod.common.basics": f"{_OWN}.horovod.basics",
    "horovod.common.util": f"{_OWN}.horovod.util",
    "horovod.runner": f"{_OWN}.launch.runner",
    "horovod.runner.launch": f"{_OWN}.horovod.launch",
    "horovod.runner.elastic.worker": f"{_OWN}.core.elastic",
    "horovod.runner.common.util.hosts": f"{_OWN}.horovod.hosts",
    "horovod.runner.common.util.secret": f"{_OWN}.horovod.secret",
    "horovod.runner.common.util.timeout": f"{_OWN}.horovod.timeout",
    "horovod.runner.util.threads": f"{_OWN}.horovod.threads",
    "horovod.__main__": f"{_OWN}.horovod.launch",
}
_EMPTY_PACKAGES: Final = (
    "horovod",
    "horovod.common",
    "horovod.runner.common",
    "horovod.runner.common.util",
    "horovod.runner.elastic",
    "horovod.runner.util",
)
_BINDINGS: Final = (
    "horovod.torch",
    "horovod.tensorflow.keras",
    "horovod.tensorflow",
    "horovod.keras",
    "horovod._keras",
)
"""Submodules of these follow by name; the longer names first."""
_PACKAGES: Final = (*_BINDINGS, "horovod.torch.elastic", "horovod.runner")
_OTHER_BINDINGS: Final = {"spark", "ray", "data"}
_NO_MXNET: Final = (
    "there is no horovod.mxnet in tlkit: MXNet is retired, and its last releases (1.9.1, 2.0.0b1) cannot be imported with "
    "NumPy 2; move the model to PyTorch, TensorFlow or JAX"
)
_MARK: Final = "__tlkit_alias__"


def _run(*args: Any, **kwargs: Any) -> Any:
    """`horovod.run` (see `tlkit.runtime.launch.programmatic.run`)."""
    return importlib.import_module(f"{_OWN}.launch.programmatic").run(*args, **kwargs)


class _PackageLoader(importlib.abc.Loader):
    """Makes `horovod` and `horovod.common`, which hold nothing but their submodules."""

    def __init__(self, finder: "HorovodAlias") -> None:
        self._finder = finder

    def exec_module(self, module: ModuleType) -> None:
        setattr(module, _MARK, True)
        if module.__name__ == "horovod":
            module.__dict__["__version__"] = API_VERSION
            module.__dict__["run"] = _run
            # From here on `horovod.…` is ours.  `horovod.torch` has the path of our package, where the usual finder would
            # load its modules a second time, under other names: be asked before it.
            sys.meta_path.remove(self._finder)
            sys.meta_path.insert(0, self._finder)


class _SameModuleLoader(importlib.abc.Loader):
    """Hands out one of our modules under another name; it is the same module, not a copy."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        del spec
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def get_code(self, fullname: str) -> CodeType:
        """For `python -m`: runs the `main` of the module that this one stands for."""
        return compile(f"import sys\nfrom {self._target} import main\nsys.exit(main())\n", f"<{fullname}>", "exec")

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec on the module; relative imports in it need its own.
        module.__spec__ = self._spec


class HorovodAlias(importlib.abc.MetaPathFinder):
    """Finds `horovod` and what is below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of an alias; None for anything else."""
        del path, target
        if fullname != "horovod" and not fullname.startswith("horovod."):
            return None
        # Below somebody else's horovod nothing is ours.
        if fullname != "horovod" and not hasattr(sys.modules.get("horovod"), _MARK):
            return None
        if fullname == "horovod" and importlib.util.find_spec("torch") is None:
            return None
        if fullname in _EMPTY_PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, _PackageLoader(self), is_package=True)
        own_name = _STANDS_FOR.get(fullname)
        if own_name is None:
            own_name = _below_a_binding(fullname)
        if own_name is None or importlib.util.find_spec(own_name) is None:
            if _is_only_asked():
                return None
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return importlib.machinery.ModuleSpec(fullname, _SameModuleLoader(own_name), is_package=fullname in _PACKAGES)


def _below_a_binding(fullname: str) -> str | None:
    """Our module for one below a framework's, None for others."""
    for binding in _BINDINGS:
        if fullname.startswith(f"{binding}."):
            return f"{_STANDS_FOR[binding]}.{fullname.removeprefix(f'{binding}.')}"
    return None


def _is_only_asked() -> bool:
    """Whether somebody asks whether the module is there, with `importlib.util.find_spec`, and does not import it."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") in {__name__, "importlib._bootstrap"}:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "importlib.util"


def _missing(fullname: str) -> str:
    binding = fullname.split(".")[1]
    if binding == "mxnet":
        return _NO_MXNET
    if binding in _OTHER_BINDINGS:
        return (
            f"tlkit's horovod has no {fullname}: it is for PyTorch (horovod.torch), TensorFlow (horovod.tensorflow) and Keras "
            "(horovod.keras); install Horovod for the rest"
        )
    return f"tlkit's horovod has no {fullname}"


def install() -> HorovodAlias | None:
    """Put the finder in place, as TLKIT_HOROVOD_ALIAS says; returns it, or None if it is not wanted."""
    wish = os.environ.get("TLKIT_HOROVOD_ALIAS", "").strip().lower()
    if wish in {"0", "false", "no", "off"}:
        return None
    finder = HorovodAlias()
    sys.meta_path.append(finder)
    return finder
