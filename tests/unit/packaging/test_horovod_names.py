"""What programs find under Horovod's names, and what they hear of what is not there."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
_HOOK = "import tlkit.runtime.horovod.hook as h; h.install()\n"


def run_python(code: str, folder: Path | None = None, *flags: str) -> str:
    """What a program prints, errors included."""
    paths = [str(REPOSITORY), *([str(folder)] if folder is not None else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *flags, "-c", _HOOK + code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.stdout + done.stderr


def test_the_modules_that_scripts_import_are_there() -> None:
    """With the names that public code takes from them; and they do something."""
    printed = run_python("""
from horovod.torch.mpi_ops import HorovodInternalError, gpu_available, num_rank_is_power_2
from horovod.common.process_sets import add_process_set, remove_process_set, is_process_set_included
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import notification_manager, WorkerNotificationManager
from horovod.common.exceptions import get_version_mismatch_message, HorovodVersionMismatchError
from horovod.common.util import check_installed_version, get_ext_suffix, is_iterable, ccl_built, ddl_built
from horovod.common.util import is_version_greater_equal_than, get_average_backwards_compatibility_fun
from horovod.runner.launch import run_commandline, parse_args, run_controller
from horovod.runner.common.util import secret, timeout
from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
from horovod.runner.util.threads import execute_function_multithreaded, in_thread
from horovod.torch.optimizer import _DistributedAdasumOptimizer
import horovod.torch as hvd
basics = HorovodBasics(__file__ if "__file__" in globals() else "", "mpi_lib")
basics.init()
print(basics.size(), hvd.rank(), hvd.is_initialized(), hasattr(basics, "torch"))
print(parse_args(["-np", "3", "true"]).np, is_version_greater_equal_than("2.10.1", "2.9"))
print([slot.to_response_string() for slot in get_host_assignments(parse_hosts("a:2,b:2"), 3, 3)])
run_controller(None, lambda: print("gloo"), None, lambda: print("mpi"), None, lambda: print("js"), 0)
print(execute_function_multithreaded(lambda x: 2 * x, [(1,), (4,)]))
key = secret.make_secret_key()
print(secret.check_digest(key, b"said", secret.compute_digest(key, b"said")), timeout.Timeout(60, "").timed_out())
""")

    assert printed.splitlines() == [
        "1 0 True False",
        "3 True",
        "['0,3,0,2,0,2', '1,3,1,2,0,1', '2,3,0,1,1,2']",
        "gloo",
        "{0: 2, 1: 8}",
        "True False",
    ]


def test_what_is_not_there_says_whose_horovod_this_is() -> None:
    """An import names it; who only asks gets an answer, as of any module."""
    assert "tlkit's horovod has no horovod.ray: it is for PyTorch" in run_python("import horovod.ray")
    assert "MXNet is retired" in run_python("import horovod.mxnet")
    assert "tlkit's horovod has no horovod.torch.nothing" in run_python("import horovod.torch.nothing")
    printed = run_python("""
from importlib.util import find_spec
print(find_spec("horovod.ray"), find_spec("horovod.torch").name)
try:
    import horovod.spark
except ImportError as error:
    print(error.name)
""")
    assert printed == "None horovod.torch\nhorovod.spark\n"


@pytest.mark.skipif(find_spec("tensorflow") is not None, reason="TensorFlow is here")
@pytest.mark.parametrize("module", ["horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras"])
def test_a_framework_that_is_not_installed_is_named(module: str) -> None:
    """With what to install."""
    said = run_python(f"import {module}")

    assert "ImportError" in said
    assert "which is not installed: pip install 'tlkit[tensorflow]'" in said


def test_there_is_no_horovod_without_torch() -> None:
    """Programs ask whether it is there, and would use it."""
    asked = "import importlib.util\nprint(importlib.util.find_spec('horovod'))\n"
    assert run_python(asked, None, "-S") == "None\n"  # without site-packages, where torch is
    assert "ModuleSpec(name='horovod'" in run_python(asked)


def test_horovodrun_gives_way_to_an_installed_horovod(tmp_path: Path) -> None:
    """Whose file of that name ours may have replaced; without one it does what tl-run does."""
    run = "import sys; sys.argv[1:] = ['--version']\nfrom tlkit.runtime.horovod.launch import horovodrun\nsys.exit(horovodrun())\n"
    assert run_python(run).startswith("tl-run ")
    info = tmp_path / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    (info / "entry_points.txt").write_text("[console_scripts]\nhorovodrun = horovod.runner.launch:run_commandline\n")
    package = tmp_path / "horovod" / "runner"
    package.mkdir(parents=True)
    (tmp_path / "horovod" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "launch.py").write_text("def run_commandline():\n    print('the real one')\n")

    assert run_python(run, tmp_path) == "the real one\n"
