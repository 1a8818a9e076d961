"""Sums tensors with torch.distributed and Gloo: python torch_sum.py RANK RANKS FOLDER PORT SIZE..."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from sums import measure

rank, ranks, _, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)


def summed(elements: int):
    # It sums in place: the first sum is checked, and then there are zeros.
    value = torch.ones(elements)
    first: list[torch.Tensor] = []

    def step() -> None:
        dist.all_reduce(value)
        if not first:
            first.append(value[[0, -1]].clone())
            value.zero_()

    return step, lambda: first[0]


measure(rank, ranks, sys.argv[5:], summed)
dist.barrier()
