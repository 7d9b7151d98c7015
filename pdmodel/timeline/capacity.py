"""Usable capacity of ports: what critical traffic and KV may take together."""

from __future__ import annotations

import numpy as np

from pdmodel.timeline.phases import FloatArray


def usable_capacity(capacity: FloatArray, guard: FloatArray, demand: FloatArray) -> FloatArray:
    r"""Usable capacity of ports, for critical traffic and KV together.

    .. math:: \hat C = \min(C, \max(C - \epsilon, B)) \text{ if } B > 0, \text{ else } C

    Parameters
    ----------
    capacity: C, shape (P,) or broadcastable [byte/s].
    guard: epsilon, same shape [byte/s].
    demand: B, critical demand at full speed, shape (..., P) [byte/s].

    Returns
    -------
    Usable capacity, shape (..., P) [byte/s]. The residual is ``usable - min(demand, usable)``.

    Notes
    -----
    Valid for any non-negative input; the guard never takes what critical traffic itself uses. Source: design of the
    residual S = max(0, C - B - eps).

    """
    guarded = np.minimum(capacity, np.maximum(capacity - guard, demand))
    return np.where(demand > 0, guarded, capacity)
