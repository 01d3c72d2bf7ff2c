"""The fusion decision."""

from hypothesis import given
from hypothesis import strategies as st

from tlkit.runtime.core.control.messages import Request
from tlkit.runtime.core.fusion import Negotiated, fuse
from tlkit.runtime.core.kinds import Kind


def tensor(name: str, elements: int, dtype: str = "float32", **changes: object) -> Negotiated:
    """A negotiated allreduce."""
    request = Request(name=name, kind=Kind.ALLREDUCE, dtype=dtype, shape=(elements,), **changes)  # type: ignore[arg-type]
    return Negotiated(id=0, request=request, arrivals_ns=(0, 0))


def names(batches: list[list[Negotiated]]) -> list[list[str]]:
    """The batches, by name."""
    return [[member.request.name for member in batch] for batch in batches]


def test_interleaved_dtypes_make_two_batches() -> None:
    """The search looks past tensors of another dtype, as Horovod's does."""
    ready = [tensor(f"m{i}", 10, "float32" if i % 2 == 0 else "float64") for i in range(6)]

    assert names(fuse(ready, 1 << 20)) == [["m0", "m2", "m4"], ["m1", "m3", "m5"]]


def test_a_group_is_cut_at_the_threshold() -> None:
    """Six tensors of 160 KB at 400 KB travel two by two."""
    ready = [tensor(f"t{i}", 40_000) for i in range(6)]

    assert names(fuse(ready, 400_000)) == [["t0", "t1"], ["t2", "t3"], ["t4", "t5"]]


def test_threshold_zero_turns_fusion_off() -> None:
    """Every tensor travels alone."""
    assert names(fuse([tensor("a", 1), tensor("b", 1)], 0)) == [["a"], ["b"]]


def test_a_tensor_larger_than_the_threshold_travels_alone() -> None:
    """It neither joins nor blocks the others."""
    ready = [tensor("small", 1), tensor("huge", 1000), tensor("tiny", 1)]

    assert ["huge"] in names(fuse(ready, 100))


def test_different_scales_or_operations_do_not_mix() -> None:
    """A buffer has one operation and one factor."""
    ready = [tensor("a", 1), tensor("b", 1, op=3), tensor("c", 1, prescale=0.5)]

    assert names(fuse(ready, 1 << 20)) == [["a"], ["b"], ["c"]]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from(["float32", "float64", "int32"]), st.sampled_from([1, 3])),
        max_size=40,
    ),
    st.integers(0, 400),
)
def test_fusion_loses_nothing_and_respects_the_threshold(described: list[tuple[int, str, int]], threshold: int) -> None:
    """Each tensor is in exactly one batch; batches are compatible and fit; tensors of one kind keep their order."""
    ready = [tensor(f"t{i}", size, dtype, op=op) for i, (size, dtype, op) in enumerate(described)]
    batches = fuse(ready, threshold)

    assert sorted(id(t) for batch in batches for t in batch) == sorted(id(t) for t in ready)
    for batch in batches:
        assert len({t.fusion_key for t in batch}) == 1
        assert len(batch) == 1 or sum(t.nbytes for t in batch) <= threshold
    for key in {t.fusion_key for t in ready}:
        before = [t.request.name for t in ready if t.fusion_key == key]
        inside = [[t.request.name for t in batch] for batch in batches if batch[0].fusion_key == key]
        for batch_names in inside:
            assert batch_names == sorted(batch_names, key=before.index)
