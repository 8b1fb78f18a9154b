"""Order of predicted and measured times, against what is counted by hand and by the slowest possible way."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.judge.leaving_out import anchoring, constant_rate, nearest
from mbsolve.judge.ranking import kendall_tau, ranking, regret
from mbsolve.judge.sizes import Sizes
from mbsolve.judge.validation import Compared, RowResult

TIMES = st.integers(1, 6).map(float)


def row(
    id_: str,
    measured: float,
    predicted: float,
    *,
    gbs: int = 64,
    tp: int = 1,
    gpus: int = 8,
    precision: str = "bf16",
    hardware: str = "h100",
    tier: str = "A-card-perf",
    recorded: bool = True,
) -> RowResult:
    return RowResult(
        id=id_,
        tier=tier,
        knobs_recorded=recorded,
        hardware=hardware,
        precision=precision,
        sizes=Sizes(
            model="m",
            gpus=gpus,
            seq_len=4096,
            gbs=gbs,
            step_flops=1e15 * gbs,
            plan={} if tp == 1 else {"tp": tp},
        ),
        evaluated=True,
        measured=Compared(step_seconds=measured),
        predicted=Compared(step_seconds=predicted),
        time_error=predicted / measured - 1,
    )


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=7))
def test_tau_is_its_definition(pairs: list[tuple[float, float]]) -> None:
    """Over all ordered pairs, one by one, as tau-b is defined: ties leave the numerator, and their side's count."""
    n = len(pairs)
    same = opposite = ties_a = ties_b = 0
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            (x, u), (y, v) = pairs[i], pairs[j]
            same += (x < y and u < v) or (x > y and u > v)
            opposite += (x < y and u > v) or (x > y and u < v)
            ties_a += x == y
            ties_b += u == v
    total = n * (n - 1)
    below = sqrt((total - ties_a) * (total - ties_b))
    expected = (same - opposite) / below if below else 0.0
    assert kendall_tau([a for a, _ in pairs], [b for _, b in pairs]) == pytest.approx(expected)


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=8, unique=True))
def test_tau_of_an_order_with_itself_and_its_reverse(times: list[float]) -> None:
    assert kendall_tau(times, times) == pytest.approx(1.0)
    assert kendall_tau(times, [-t for t in times]) == pytest.approx(-1.0)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=7))
def test_regret_is_of_the_worst_choice_that_the_prediction_allows(pairs: list[tuple[float, float]]) -> None:
    order = sorted(pairs, key=lambda pair: (pair[1], -pair[0]))
    expected = order[0][0] / min(m for m, _ in pairs) - 1
    assert regret([m for m, _ in pairs], [p for _, p in pairs]) == pytest.approx(expected)
    assert expected >= 0


def test_a_group_is_counted_as_by_hand() -> None:
    """Measured 10, 10.1, 12, 15; predicted 11, 10, 9, 16: 10 and 10.1 are not apart, 12 is predicted fastest."""
    rows = [row("a", 10, 11), row("b", 10.1, 10, tp=2), row("c", 12, 9, tp=4), row("d", 15, 16, tp=8)]
    found = ranking(rows)
    assert found is not None
    one = found.groups[0]
    assert (one.configurations, one.pairs, one.right, one.per_token) == (4, 5, 3, False)
    assert one.tau == pytest.approx((3 - 3) / 6)
    assert one.regret == pytest.approx(0.2)
    assert (found.pairs, found.right) == (5, 3)
    assert found.worst_regret == found.mean_regret == one.regret


def test_runs_of_one_configuration_are_one() -> None:
    rows = [row("a", 10, 11), row("a again", 14, 11), row("a once more", 11, 11), row("b", 12, 10, tp=2)]
    assert ranking(rows) is None
    found = ranking([*rows, row("c", 20, 20, tp=4)])
    assert found is not None
    assert found.groups[0].configurations == 3
    assert found.groups[0].regret == pytest.approx(12 / 11 - 1)


def test_other_batches_are_compared_by_token() -> None:
    """Twice the batch in less than twice the time is the faster run."""
    rows = [row("a", 10, 10), row("b", 18, 18, gbs=128), row("c", 11, 11, tp=2)]
    found = ranking(rows)
    assert found is not None
    assert found.groups[0].per_token
    assert found.groups[0].tau == pytest.approx(1.0)
    assert ranking([row("a", 10, 10), row("b", 18, 22, gbs=128), row("c", 11, 11.5, tp=2)]) is not None


@pytest.mark.parametrize(
    "change",
    [{"gpus": 16}, {"precision": "fp8_cs"}, {"hardware": "b200"}, {"recorded": False}, {"tier": "probe"}],
)
def test_other_jobs_are_another_group(change: dict[str, object]) -> None:
    rows = [row("a", 10, 10), row("b", 12, 12, tp=2)]
    assert ranking([*rows, row("c", 14, 14, tp=4)]) is not None
    assert ranking([*rows, row("c", 14, 14, tp=4, **change)]) is None  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.floats(0.5, 2), st.sampled_from(["bf16", "fp8_cs"]), st.sampled_from([8, 16, 64])),
        min_size=2,
        max_size=7,
    )
)
def test_anchors_are_as_if_each_row_were_predicted_anew(runs: list[tuple[float, str, int]]) -> None:
    """All pairs by the slow way: the anchor's measured over predicted time is multiplied onto the row's prediction."""
    rows = [
        row(str(i), 10, 10 * ratio, precision=precision, gpus=gpus)
        for i, (ratio, precision, gpus) in enumerate(runs)
    ]
    found = anchoring(rows)
    assert found is not None
    errors = []
    for one in rows:
        for other in rows:
            if other.id != one.id:
                factor = (other.measured.step_seconds or 0) / (other.predicted.step_seconds or 1)
                errors.append(abs((one.predicted.step_seconds or 0) * factor / 10 - 1))
    assert found.pairs.rows == len(errors)
    assert found.pairs.mean == pytest.approx(sum(errors) / len(errors), abs=1e-9)
    assert found.alone.rows == found.nearest.rows == len(rows)


def test_the_nearest_anchor_has_the_precision_then_the_gpus() -> None:
    me = row("me", 10, 10, gpus=64)
    near = row("near", 10, 10, gpus=128, gbs=128)
    far = row("far", 10, 10, gpus=512)
    other = row("other", 10, 10, gpus=64, precision="fp8_cs")
    assert nearest(me, [other, far, near]) is near
    assert nearest(me, [other, far]) is far
    assert nearest(me, [other]) is other
    like, unlike = row("z like", 10, 10, gpus=64), row("a unlike", 10, 10, gpus=64, tp=2)
    assert nearest(me, [unlike, like, near]) is like


def test_an_anchor_takes_out_what_a_cell_has_in_common() -> None:
    """All of a cell are 20% too slow: the anchor leaves nothing; one that ran the same is not another run."""
    rows = [row("a", 10, 12), row("b", 20, 24, tp=2), row("b again", 20, 24, tp=2)]
    found = anchoring([*rows, row("alone", 10, 15, hardware="b200")])
    assert found is not None and found.other is not None
    assert found.alone.rows == 3
    assert found.alone.mean == pytest.approx(0.2)
    assert found.nearest.largest == pytest.approx(0.0, abs=1e-12)
    assert found.pairs.rows == 6
    same = anchoring(rows[1:])
    assert same is not None and same.other is None


def test_a_constant_rate_misses_by_how_rates_differ() -> None:
    rows = [row("a", 10, 1), row("b", 20, 1, tp=2), row("c", 5, 1, tp=4)]
    found = constant_rate(rows, lambda r: (r.hardware, r.precision))
    assert dict(found) == pytest.approx({"a": 0.0, "b": -0.5, "c": 1.0})
