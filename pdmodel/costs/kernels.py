"""Which formula prices which operation, with the constants of a GPU."""

from __future__ import annotations

from pdmodel.costs.device import Device
from pdmodel.costs.estimate import Estimate
from pdmodel.costs.roofline import (
    decode_attention_s,
    elementwise_s,
    gemm_s,
    moe_s,
    prefill_attention_s,
    quantise_s,
)
from pdmodel.llm.dtypes import WeightDtype
from pdmodel.llm.operators import Operation, OperationKind, causal_pairs
from pdmodel.spec import weakest
from pdmodel.units import US


def operation_s(operation: Operation, device: Device) -> Estimate:
    """Time of one operation on one GPU [s]; its source is no better than the operation's ``basis``.

    Raises
    ------
    CoverageError: no peak or formula covers its dtype.

    """
    match operation.kind:
        case OperationKind.GEMM:
            return _gemm(operation, device)
        case OperationKind.MOE:
            return _moe(operation, device)
        case OperationKind.PREFILL_ATTENTION:
            prefill, kind = device.prefill_attention(operation.kv_dtype)
            flop_per_s = device.peak_flop_per_s(WeightDtype.BF16)
            pairs = operation.pairs or causal_pairs(operation.m, operation.context_tokens - operation.m)
            time_s = prefill_attention_s(operation.flop, operation.m, pairs, flop_per_s=flop_per_s, constants=prefill)
        case OperationKind.DECODE_ATTENTION:
            decode, kind = device.decode_attention(operation.kv_dtype)
            time_s = decode_attention_s(
                operation.flop,
                operation.size_bytes,
                operation.context_tokens,
                flop_per_s=device.peak_flop_per_s(WeightDtype.BF16),
                bytes_per_s=device.bytes_per_s,
                constants=decode,
            )
        case OperationKind.ELEMENTWISE:
            elementwise, kind = device.elementwise()
            time_s = elementwise_s(operation.size_bytes, bytes_per_s=device.bytes_per_s, constants=elementwise)
    return Estimate(float(time_s), weakest(kind, operation.basis))


def _gemm(operation: Operation, device: Device) -> Estimate:
    constants, kind = device.gemm(operation.dtype)
    time_s = gemm_s(
        operation.m,
        operation.n,
        operation.k,
        operation.size_bytes,
        copies=operation.flop / (2.0 * operation.m * operation.n * operation.k) if operation.flop > 0 else 1.0,
        flop_per_s=device.peak_flop_per_s(operation.dtype),
        bytes_per_s=device.bytes_per_s,
        constants=constants,
    )
    if device.eager_calls:
        time_s += constants.call_us * US
    if constants.quantise is not None:
        time_s += quantise_s(operation.m, operation.k, bytes_per_s=device.bytes_per_s, constants=constants.quantise)
    return Estimate(float(time_s), kind)


def _moe(operation: Operation, device: Device) -> Estimate:
    constants, kind = device.moe(operation.dtype)
    if operation.m <= 0:
        return Estimate(0.0, kind)
    time_s = moe_s(
        operation.flop,
        operation.weight_bytes,
        pairs=operation.m,
        experts=operation.experts,
        width=operation.k,
        hidden_bytes=operation.tokens * operation.n * 2,
        flop_per_s=device.peak_flop_per_s(operation.dtype),
        bytes_per_s=device.bytes_per_s,
        constants=constants,
    )
    return Estimate(float(time_s), kind)
