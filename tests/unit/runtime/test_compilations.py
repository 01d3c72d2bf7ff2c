"""A training compiles with any version of torch, whatever becomes of what is recorded."""

import logging
import sys
from collections.abc import Iterator

import pytest
import torch

from tlkit.runtime.instrument import compilations


@pytest.fixture
def not_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As before TorchDynamo was loaded."""
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "torch._dynamo", raising=False)
        compilations.install()
    yield
    compilations.uninstall()


@pytest.mark.usefixtures("not_loaded")
def test_a_version_that_cannot_be_recorded_still_compiles(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once it is needed."""

    def is_missing() -> None:
        raise ImportError("no such handler")

    monkeypatch.setattr(compilations, "_listen_to_dynamo", is_missing)
    with caplog.at_level(logging.WARNING, "tlkit.instrument"):
        double = torch.compile(lambda x: 2 * x, backend="eager")
    assert double(torch.ones(1)).item() == 2
    assert "cannot be recorded" in caplog.text
