"""Sums arrays with MPI_Allreduce: mpiexec -n RANKS python mpi_sum.py SIZE..."""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from sums import measure

everyone = MPI.COMM_WORLD


def summed(elements: int):
    value, total = np.ones(elements, np.float32), np.empty(elements, np.float32)
    return lambda: everyone.Allreduce(value, total), lambda: total


measure(everyone.rank, everyone.size, sys.argv[1:], summed)
