"""How gradients meet: the options of the all-reduce, and what each strategy makes of them."""

from tfdist.allreduce.options import AllReduceOptions

__all__ = ["AllReduceOptions"]
