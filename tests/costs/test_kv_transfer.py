"""The closed form of a transfer; published tables are in tests/verification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdmodel.costs.kv_transfer import (
    MOONCAKE_VLLM,
    TransferConstants,
    descriptor_rate_bytes_per_s,
    knee_bytes,
    transfer_s,
)
from pdmodel.errors import InputError
from pdmodel.spec import SourceKind


def test_descriptors_are_a_rate_of_operations_and_then_a_line():
    # 16 threads, 10.8 us each per operation: 1.48 million a second; then the path.
    constants = TransferConstants(0.0, 10.8e-6, 16, 1e9, SourceKind.MEASURED, "Mooncake efa_transport.md")
    knee = knee_bytes(360e9, constants)
    assert knee == pytest.approx(243e3, rel=0.01)
    assert descriptor_rate_bytes_per_s(knee / 2, 360e9, constants) == pytest.approx(knee / 2 * 16 / 10.8e-6)
    assert descriptor_rate_bytes_per_s(knee * 2, 360e9, constants) == pytest.approx(360e9)


def test_descriptors_dominate_when_they_are_small():
    # sglang pull request 40500: 1.71 million per-token slices took 5.2 s from one poster; 13.3 thousand do not count.
    constants = TransferConstants(0.0, 3.06e-6, 1, 7e6, SourceKind.MEASURED, "sglang pull request 40500")
    assert transfer_s(4e9, 1.71e6, 50e9, constants) == pytest.approx(5.2, rel=0.02)
    assert transfer_s(4e9, 13.3e3, 50e9, constants) == pytest.approx(0.08, rel=0.01)  # bytes again


@given(
    size=st.floats(1, 1e12),
    descriptors=st.floats(1, 1e7),
    path=st.floats(1e8, 1e12),
    threads=st.integers(1, 16),
)
def test_it_is_the_largest_of_three_and_no_more(size, descriptors, path, threads):
    constants = TransferConstants(1e-3, 4e-6, threads, 7e6, SourceKind.ASSUMED, "made up")
    time = transfer_s(size, descriptors, path, constants) - 1e-3
    parts = (size / path, descriptors * 4e-6 / threads, descriptors / 7e6)
    assert time == pytest.approx(max(parts), rel=1e-6, abs=1e-12)
    rate = descriptor_rate_bytes_per_s(size / descriptors, path, constants)
    assert size / rate == pytest.approx(max(parts), rel=1e-9)


def test_nothing_to_send_and_nonsense():
    assert transfer_s(0, 0, 1e9, MOONCAKE_VLLM) == 0
    for bad in ((-1, 1, 1e9), (1, -1, 1e9), (1, 1, 0)):
        with pytest.raises(InputError):
            transfer_s(*bad, MOONCAKE_VLLM)
    with pytest.raises(InputError):
        descriptor_rate_bytes_per_s(0, 1e9, MOONCAKE_VLLM)
    with pytest.raises(InputError):
        TransferConstants(0, 0, 0, 1, SourceKind.ASSUMED, "made up")
