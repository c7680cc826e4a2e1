"""Makes single devices and servers from numbers like "600 devices, 20 servers": the ``auto_topology`` pass of DSD section 3.1.

A pool with a ``count`` has that many members. The others divide the rest in proportion to their shares, by the method of largest
remainders: each part differs from its exact value by less than one, the parts add up, and the same numbers give the same parts. A pool
without a share gets what the other shares leave of the whole. If they leave nothing, it gets the mean of the others' shares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct

from streamco.errors import ConfigError
from streamco.sim.fleet.options import DevicePool, ServerPool, WorldOptions
from streamco.sim.hardware.links import LinkOptions

__all__ = ["Device", "Server", "Topology", "apportion", "auto_topology", "describe_topology"]


class Device(Struct, frozen=True, kw_only=True):
    """One device of the topology.

    Args:
        number: number of the device, from 0.
        pool: number of its pool, from 0.
        options: the pool's options.
        link: its link to every server.
    """

    number: int
    pool: int
    options: DevicePool
    link: LinkOptions


class Server(Struct, frozen=True, kw_only=True):
    """One server of the topology; for the fields see ``Device``."""

    number: int
    pool: int
    options: ServerPool


class Topology(Struct, frozen=True, kw_only=True):
    """All devices and servers. Pools are interleaved, so that the first hundred devices are a sample of all."""

    devices: tuple[Device, ...]
    servers: tuple[Server, ...]


def auto_topology(world: WorldOptions) -> Topology:
    """Make the single devices and servers of an experiment.

    Raises:
        ConfigError: there are no pools, or their counts don't add up to the number of devices or servers.
    """
    device_pools = _deal(_sizes("device", world.device_pools, world.devices))
    server_pools = _deal(_sizes("server", world.server_pools, world.servers))
    return Topology(
        devices=tuple(
            Device(number=number, pool=pool, options=world.device_pools[pool], link=world.device_pools[pool].link or world.link)
            for number, pool in enumerate(device_pools)
        ),
        servers=tuple(Server(number=number, pool=pool, options=world.server_pools[pool]) for number, pool in enumerate(server_pools)),
    )


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Return whole-number parts of ``total`` in proportion to shares above 0 (largest remainders; of equal ones, the first wins)."""
    exact = [total * share / sum(shares) for share in shares]
    parts = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda index: (parts[index] - exact[index], index))
    for index in by_remainder[: total - sum(parts)]:
        parts[index] += 1
    return parts


def describe_topology(topology: Topology) -> str:
    """Return text like "60 devices (30 llama2-7b on a40, 30 at 30 tokens/s), 4 servers (llama2-70b on 4 a100)"."""
    devices = _count(_device_kind(device.options) for device in topology.devices)
    servers = _count(_server_kind(server.options) for server in topology.servers)
    return f"{_noun(len(topology.devices), 'device')} ({devices}), {_noun(len(topology.servers), 'server')} ({servers})"


def _sizes(what: str, pools: Sequence[DevicePool | ServerPool], total: int) -> list[int]:
    """Return the size of each pool."""
    if not pools:
        raise ConfigError(f"{what}_pools: expected one pool or more, got none")
    sizes = [pool.count or 0 for pool in pools]
    sharing = [index for index, pool in enumerate(pools) if pool.count is None]
    left = total - sum(sizes)
    if left < 0 or (left > 0 and not sharing):
        raise ConfigError(f"{what}_pools: expected counts of {total} in all, as {what}s says, got {sum(sizes)}")
    for index, part in zip(sharing, apportion(left, _shares([pools[index].share for index in sharing])), strict=True):
        sizes[index] = part
    return sizes


def _shares(shares: Sequence[float | None]) -> list[float]:
    known = [share for share in shares if share is not None]
    missing = len(shares) - len(known)
    rest = 1.0 - sum(known)
    usual = rest / missing if missing and rest > 0.0 else sum(known) / len(known) if known else 1.0
    return [usual if share is None else share for share in shares]


def _deal(sizes: Sequence[int]) -> list[int]:
    """Return the pool of each device or server. Each pool is spread evenly over the numbers."""
    spread = sorted(((one + 0.5) / size, pool) for pool, size in enumerate(sizes) for one in range(size))
    return [pool for _, pool in spread]


def _count(kinds: Iterable[str]) -> str:
    counted = Counter(kinds)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count} {kind}" for kind, count in counted.items())


def _noun(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _device_kind(pool: DevicePool) -> str:
    if pool.model is not None:
        return f"{pool.model} on {_gpus(pool)}"
    return f"at {pool.draft_tokens_per_s:g} tokens/s"


def _server_kind(pool: ServerPool) -> str:
    return pool.step_times if pool.step_times is not None else f"{pool.model} on {_gpus(pool)}"


def _gpus(pool: DevicePool | ServerPool) -> str:
    return f"{pool.tensor_parallel} {pool.gpu}" if pool.tensor_parallel > 1 else str(pool.gpu)
