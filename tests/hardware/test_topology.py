"""Groups of ranks on the network tree."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mbsolve.hardware.card import load_machine
from mbsolve.hardware.topology import SCALE_OUT, Topology

H100, GB200 = load_machine("h100"), load_machine("gb200")
DEGREES = st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 64, 72, 128, 512])


def test_a_node_of_eight() -> None:
    topology = Topology(H100, 64)
    assert topology.domains == 8
    assert topology.network_of(8) == H100.domain_network
    assert topology.network_of(4, 2) == H100.domain_network
    assert topology.network_of(8, 2) == H100.scaleout_network
    assert topology.bytes_per_second(8) == 450e9
    assert topology.bytes_per_second(8, 2) == 4 * 50e9
    assert topology.bytes_per_second(8, 8) == 50e9
    assert topology.bytes_per_second(16, 1) == 8 * 50e9


def test_blocks_of_an_nvl72() -> None:
    topology = Topology(GB200, 256)
    assert (topology.domain_gpus, topology.domains) == (64, 4)
    assert topology.network_of(64) == GB200.domain_network
    assert topology.network_of(65) == GB200.scaleout_network
    assert topology.bytes_per_second(128) == 900e9
    assert topology.bytes_per_second(4, 64) == 50e9
    assert Topology(GB200, 144, block_gpus=72).network_of(72) == GB200.domain_network
    assert Topology(GB200, 144, block_gpus=500).domain_gpus == 72


def test_a_domain_inside_a_node_shrinks_with_it_and_an_nvl72_does_not() -> None:
    assert Topology(H100, 16, gpus_per_node=4).domain_gpus == 4
    assert Topology(GB200, 64, gpus_per_node=2).domain_gpus == 64


def test_machines_without_a_fast_domain() -> None:
    inner, outer = H100.networks
    lone = H100.model_copy(update={"networks": (inner.model_copy(update={"gpus": 1}), outer)})
    topology = Topology(lone, 8)
    assert topology.network_of(2) == outer
    assert topology.bytes_per_second(2) == 50e9


def test_the_graph_holds_every_gpu_once() -> None:
    topology = Topology(GB200, 200)
    domains = list(topology.graph.predecessors(SCALE_OUT))
    assert [topology.graph.nodes[domain]["gpus"] for domain in domains] == [64, 64, 64, 8]


def test_counts_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="gpus is 0, but it must be at least 1"):
        Topology(H100, 0)
    with pytest.raises(ValueError, match="block_gpus is 0"):
        Topology(H100, 8, block_gpus=0)
    with pytest.raises(ValueError, match="group is 0 and stride is 1"):
        Topology(H100, 8).network_of(0)


def test_sixteen_thousand_gpus_are_cheap() -> None:
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        Topology(H100, 16384)
        best = min(best, time.perf_counter() - start)
    assert best < 0.1


@given(
    groups=st.lists(DEGREES, min_size=1, max_size=20),
    stride=DEGREES,
    name=st.sampled_from(["h100", "gb200"]),
    gpus=st.sampled_from([8, 64, 1024]),
)
def test_arrays_give_what_scalars_give(groups: list[int], stride: int, name: str, gpus: int) -> None:
    topology = Topology(load_machine(name), gpus)
    one_stride = topology.bytes_per_second(np.array(groups), stride)
    assert one_stride.tolist() == [topology.bytes_per_second(group, stride) for group in groups]
    table = topology.bytes_per_second(np.array(groups)[:, None], np.array([1, stride]))
    assert table.shape == (len(groups), 2)
    assert table[:, 1].tolist() == one_stride.tolist()
    numpy_scalar: Any = np.int64(groups[0])
    assert topology.bytes_per_second(numpy_scalar, stride) == one_stride[0]


@given(group=DEGREES, stride=DEGREES)
def test_a_group_is_never_faster_than_its_domain(group: int, stride: int) -> None:
    topology = Topology(H100, 1024)
    rate = topology.bytes_per_second(group, stride)
    assert 50e9 <= rate <= 450e9
    assert (rate == 450e9) == (group * stride <= 8)


def test_no_pairs_give_no_rates() -> None:
    assert Topology(H100, 8).bytes_per_second(np.array([], dtype=np.int64)).shape == (0,)
