"""How device and host time of a pass overlap: near the smooth curve, and free where the host is far ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.constraints.time.step import HIDDEN_HOST, soft_max, soft_max_quanta

SECONDS = st.floats(min_value=0.0, max_value=10.0, allow_nan=False)


@given(SECONDS, SECONDS)
def test_tangents_stay_near_the_smooth_curve(device: float, host: float) -> None:
    smooth = (device**3 + host**3) ** (1 / 3)
    assert soft_max(device, host) == pytest.approx(smooth, rel=4e-3, abs=1e-9)


@given(SECONDS, st.floats(min_value=0.0, max_value=HIDDEN_HOST))
def test_a_host_far_ahead_costs_nothing(device: float, share: float) -> None:
    assert soft_max(device, share * device) == pytest.approx(device, rel=1e-12)
    quanta = int(device * 1e8)
    assert soft_max_quanta(quanta, int(share * quanta)) == quanta


@given(st.floats(min_value=0.3, max_value=5.0))
def test_a_host_near_the_device_costs_something(share: float) -> None:
    assert soft_max(1.0, share) > 1.0


@given(SECONDS, SECONDS, SECONDS)
def test_more_work_never_takes_less(device: float, host: float, more: float) -> None:
    assert soft_max(device, host) <= soft_max(device + more, host)
    assert soft_max(device, host) <= soft_max(device, host + more)
