"""Whether somebody still looks at the memory of gradients."""

import torch

from tlkit.runtime.torch.gradient_memory import Layout


def made() -> tuple[list[torch.Tensor], Layout]:
    """Some parameters, and where their gradients lie."""
    parameters = [torch.nn.Parameter(torch.zeros(count)) for count in (3, 4, 5)]
    return list(parameters), Layout(parameters, torch.zeros(12))


def test_a_part_that_the_runtime_has_is_nobodys_view() -> None:
    """Made as often as asked for, and counted once."""
    parameters, layout = made()
    part = layout.part(3, 12)
    assert layout.part(3, 12) is part
    layout.part(0, 3)
    assert part.data_ptr() == layout.slots[1].data_ptr()
    assert part.numel() == 9

    assert layout.is_free(parameters)


def test_a_view_of_a_gradient_is_seen_beside_the_parts() -> None:
    """As long as there is one."""
    parameters, layout = made()
    layout.part(0, 12)
    view = layout.slots[1][1:]
    assert not layout.is_free(parameters)

    del view
    assert layout.is_free(parameters)
    kept = layout.slots[0]
    assert not layout.is_free(parameters)
    del kept
    assert layout.is_free(parameters)
