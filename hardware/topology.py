"""Which network a group of ranks uses, and how fast it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, overload

import networkx as nx  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from mbsolve.hardware.card import Machine, Network

SCALE_OUT = "scale-out"

Integers = NDArray[np.integer[Any]]


class Topology:
    """The GPUs of one job as a tree: NVLink domains below the scale-out network.

    A domain is one node of the graph (attribute ``gpus``), not one node for each GPU, so that 16384 GPUs stay cheap.

    Parameters
    ----------
    machine
        The card of the servers.
    gpus
        GPUs of the job; at least 1.
    gpus_per_node
        GPUs of a server that the job uses; the card's number if None. A domain inside a server shrinks with it.
    block_gpus
        GPUs of a domain that the job takes as a block; the card's number if None. Never more than a domain has.

    Raises
    ------
    ValueError
        If a count is below 1.
    """

    def __init__(
        self, machine: Machine, gpus: int, gpus_per_node: int | None = None, block_gpus: int | None = None
    ) -> None:
        node_gpus = machine.gpus_per_node if gpus_per_node is None else gpus_per_node
        for name, count in (("gpus", gpus), ("gpus_per_node", node_gpus), ("block_gpus", block_gpus)):
            if count is not None and count < 1:
                raise ValueError(f"{name} is {count}, but it must be at least 1.")
        reach = machine.domain_network.gpus or gpus
        if reach <= machine.gpus_per_node:
            reach = min(reach, node_gpus)
        block = machine.block_gpus if block_gpus is None else block_gpus
        self.machine = machine
        self.gpus = gpus
        self.gpus_per_node = node_gpus
        self.domain_gpus = reach if block is None else min(block, reach)
        self.graph = self._build()
        self._network = lru_cache(maxsize=None)(self._climb)

    def _build(self) -> nx.DiGraph:
        """Build the tree; edges lead from a domain up to the scale-out network."""
        domains = -(-self.gpus // self.domain_gpus)
        inner, outer = self.machine.domain_network, self.machine.scaleout_network
        graph: nx.DiGraph = nx.DiGraph()
        graph.add_node(SCALE_OUT, gpus=self.gpus, reach=None, network=outer)
        graph.add_nodes_from(
            (
                f"domain {index}",
                {
                    "gpus": min(self.domain_gpus, self.gpus - index * self.domain_gpus),
                    "reach": self.domain_gpus,
                    "network": inner,
                },
            )
            for index in range(domains)
        )
        graph.add_edges_from((f"domain {index}", SCALE_OUT) for index in range(domains))
        return graph

    @property
    def domains(self) -> int:
        """Number of domains that the job occupies."""
        return int(self.graph.in_degree(SCALE_OUT))

    def _climb(self, span: int) -> Network:
        """Return the network of the lowest node of the tree that reaches ``span`` neighbouring GPUs."""
        node = "domain 0"
        while (reach := self.graph.nodes[node]["reach"]) is not None and span > reach:
            (node,) = self.graph.successors(node)
        network: Network = self.graph.nodes[node]["network"]
        return network

    def network_of(self, group: int, stride: int = 1) -> Network:
        """Return the network that joins ``group`` ranks placed every ``stride`` GPUs.

        The group spans ``group * stride`` GPUs: it stays inside a domain if they fit, else it uses the scale-out
        network. The job need not be that large.

        Raises
        ------
        ValueError
            If a number is below 1.
        """
        if group < 1 or stride < 1:
            raise ValueError(f"group is {group} and stride is {stride}, but both must be at least 1.")
        return self._network(group * stride)

    def inside(self, group: Any, stride: Any = 1) -> Any:
        """Return whether a group of ranks placed every ``stride`` GPUs stays inside a domain; scalars or arrays."""
        return np.asarray(group) * np.asarray(stride) <= self.domain_gpus

    def _rate(self, group: int, stride: int) -> float:
        inner = self.machine.domain_network.bytes_per_second
        network = self.network_of(group, stride)
        if network.gpus is not None:
            return inner
        # Ranks of one group inside a domain share the adapters of that domain.
        return min(inner, max(1, self.domain_gpus // stride) * network.bytes_per_second)

    @overload
    def bytes_per_second(self, group: int, stride: int = 1) -> float: ...
    @overload
    def bytes_per_second(self, group: Integers, stride: int | Integers = 1) -> NDArray[np.float64]: ...
    @overload
    def bytes_per_second(self, group: int, stride: Integers) -> NDArray[np.float64]: ...
    def bytes_per_second(
        self, group: int | Integers, stride: int | Integers = 1
    ) -> float | NDArray[np.float64]:
        """Return the rate of one rank, in one direction, inside a group of ranks.

        Parameters
        ----------
        group
            Ranks of the group; at least 1. An integer or an array of integers.
        stride
            GPUs from one rank to the next; at least 1. An integer or an array that broadcasts with `group`.

        Returns
        -------
        float or array
            Inside a domain the domain's rate. Across domains ``max(1, domain // stride)`` times the scale-out
            rate, at most the domain's rate.

        Raises
        ------
        ValueError
            If a number is below 1.
        """
        if isinstance(group, int) and isinstance(stride, int):
            return self._rate(group, stride)
        pairs = np.broadcast_arrays(np.asarray(group, dtype=np.int64), np.asarray(stride, dtype=np.int64))
        groups, strides = (array.ravel() for array in pairs)
        if groups.size == 0:
            return np.empty(pairs[0].shape)
        # One number a pair: unique over plain numbers is far faster than over rows.
        width = int(strides.max()) + 1
        keys, back = np.unique(groups * width + strides, return_inverse=True)
        rates = np.array([self._rate(*divmod(int(key), width)) for key in keys])
        found = rates[back].reshape(pairs[0].shape)
        return found if found.ndim else float(found)
