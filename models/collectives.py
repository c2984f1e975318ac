"""Exchanges between ranks; all of them do nothing in a world of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Number of this rank."""
    return dist.get_rank() if dist.is_initialized() else 0


def share(size: int, rank: int, world_size: int) -> tuple[int, int]:
    """This rank's part of `size` consecutive things, as start and stop; parts differ by one."""
    return size * rank // world_size, size * (rank + 1) // world_size


def gather_shares(groups: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Rows of all ranks in the order of the ranks, of several groups in one exchange.

    Args:
        groups: This rank's rows of each group, `[sizes[group][rank], ...]`.
        sizes: Rows of each rank, by group.

    Returns:
        `[sum(sizes[group]), ...]` for each group; without gradient, which `sum_shares` brings back.
    """
    if world_size() == 1:
        return list(groups)
    by_rank = list(zip(*sizes, strict=True))
    gathered = _gather(torch.cat(list(groups)), [sum(own) for own in by_rank])
    pieces = iter(torch.split(gathered, [size for own in by_rank for size in own]))
    shares = [[next(pieces) for _ in groups] for _ in by_rank]
    return [torch.cat(of_all) for of_all in zip(*shares, strict=True)]


def sum_shares(groups: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The way back of `gather_shares`: the sum over all ranks of each rank's own rows.

    Args:
        groups: A tensor of all ranks' rows for each group, `[sum(sizes[group]), ...]`.
        sizes: Rows of each rank, by group.

    Returns:
        This rank's rows of each group, `[sizes[group][rank], ...]`.
    """
    if world_size() == 1:
        return list(groups)
    shares = [torch.split(group, list(of)) for group, of in zip(groups, sizes, strict=True)]
    by_rank = [torch.cat(of_rank) for of_rank in zip(*shares, strict=True)]
    # Every rank needs the sum of its own rows only.
    own = by_rank[rank()]
    parts = exchange(
        torch.cat([part.flatten() for part in by_rank]),
        [part.numel() for part in by_rank],
        [own.numel()] * world_size(),
    )
    summed = parts.view(world_size(), *own.shape).sum(0)
    return list(torch.split(summed, [of[rank()] for of in sizes]))


def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replaces each gradient by its sum over all ranks, in one exchange."""
    if world_size() == 1:
        return
    parameters = list(parameters)
    # A rank without examples, or without any history, has no gradient for some parameters; it
    # takes part with zeros.
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    parts = torch.split(flat, [g.numel() for g in gradients])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


def maximum(values: list[int], device: torch.device) -> list[int]:
    """Element-wise maximum over all ranks."""
    if world_size() == 1:
        return values
    tensor = torch.tensor(values, dtype=torch.int64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [int(v) for v in tensor]


def gather_numbers(numbers: Tensor) -> Tensor:
    """The same count of numbers of every rank, `[K]` to `[ranks, K]`; on the CPU afterwards."""
    if world_size() == 1:
        return numbers[None].cpu()
    parts = [torch.empty_like(numbers) for _ in range(world_size())]
    dist.all_gather(parts, numbers)
    return torch.stack(parts).cpu()


def total(value: Tensor) -> Tensor:
    """Sum over all ranks."""
    if world_size() > 1:
        value = value.clone()
        dist.all_reduce(value)
    return value


def exchange(x: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Sends each rank its part of a flat tensor; returns what the ranks sent, in their order.

    Args:
        x: `[sum(sent)]`.
        sent: Elements for each rank.
        received: Elements from each rank, as that rank knows them.
    """
    if world_size() == 1:
        return x
    out = x.new_empty(sum(received))
    dist.all_to_all_single(out, x, received, sent)
    return out


def gather_rows(x: Tensor) -> Tensor:
    """Rows of all ranks, any number of each, in the order of the ranks; without gradient.

    Args:
        x: This rank's rows `[N, ...]`.
    """
    if world_size() == 1:
        return x
    counts = torch.zeros(world_size(), dtype=torch.int64, device=x.device)
    counts[rank()] = len(x)
    sizes = [int(count) for count in total(counts)]
    return _gather(x, sizes)


def first_decides(work: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Does the work on the first rank; all ranks get the result, or raise its error.

    An error that only one rank raises would leave the others waiting for it.

    Args:
        work: Called on the first rank only; result and error must be picklable.
        group: Group whose time-out counts; by default the group of all ranks.
    """
    if world_size() == 1:
        return work()
    box: list[tuple[T | None, Exception | None]] = [(None, None)]
    if rank() == 0:
        try:
            box = [(work(), None)]
        except Exception as failure:
            box = [(None, failure)]
    dist.broadcast_object_list(box, src=0, group=group)
    result, error = box[0]
    if error is not None:
        raise error
    return cast(T, result)


def all_or_none(work: Callable[[], T]) -> T:
    """Does the work on every rank; where it fails on one, it fails on all.

    Args:
        work: No collective; errors must be picklable.
    """
    if world_size() == 1:
        return work()
    result, error = None, None
    try:
        result = work()
    except Exception as failure:
        error = failure
    errors: list[Exception | None] = [None] * world_size()
    dist.all_gather_object(errors, error)
    for found in errors:
        if found is not None:
            raise found
    return cast(T, result)


def _gather(x: Tensor, sizes: list[int]) -> Tensor:
    # Collectives want equal shapes.
    padded = x.new_zeros(max(sizes), *x.shape[1:])
    padded[: len(x)] = x
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])
