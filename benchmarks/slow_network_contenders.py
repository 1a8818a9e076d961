"""The contenders of slow_network.py: programs in the folder contenders, and the methods that they are started with."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A training method that is compared with the others.

    Attributes:
        program: file name of the program in the folder contenders.
        method: the program's --method.
        python: which interpreter runs the program: "own", "torch" or "horovod".
        exact: whether the weights depend on the number of workers only by rounding: gradients are summed in every step,
            uncompressed. The accuracy is then measured only for the smallest number of workers, and otherwise for each.
    """

    program: str
    method: str
    python: str = "own"
    exact: bool = False


def _keras(method: str, *, exact: bool = False) -> Contender:
    return Contender(program="keras_worker.py", method=method, exact=exact)


def _torch(method: str, *, exact: bool = False) -> Contender:
    return Contender(program="torch_worker.py", method=method, python="torch", exact=exact)


def _horovod(method: str, *, exact: bool = False) -> Contender:
    return Contender(program="horovod_worker.py", method=method, python="horovod", exact=exact)


# A third of the first epoch.
START = 78
CONTENDERS = {
    "TensorFlow": _keras("stock", exact=True),
    "tfdist": _keras("tfdist", exact=True),
    "tfdist, native": _keras("tfdist native", exact=True),
    "tfdist, fp16": _keras("tfdist fp16"),
    "tfdist, topk:0.01": _keras("tfdist topk:0.01"),
    "tfdist, threshold:0.001": _keras("tfdist threshold:0.001"),
    "tfdist, powersgd:4": _keras("tfdist powersgd:4"),
    "tfdist, local:16": _keras("tfdist local every=16"),
    "tfdist, local:16, slots": _keras("tfdist local every=16 average=weights,slots"),
    "tfdist, local:16, fp16": _keras("tfdist local every=16 compression=fp16"),
    "tfdist, local:16, topk:0.01": _keras("tfdist local every=16 compression=topk:0.01"),
    "tfdist, local:16, powersgd:4": _keras("tfdist local every=16 compression=powersgd:4"),
    "tfdist, native, local:16": _keras("tfdist native local every=16"),
    "tfdist, native, local:16, overlap": _keras("tfdist native local every=16 overlap=1"),
    # The name gives the learning rate where it is not that of the others.
    "tfdist, rate 0.1": _keras("tfdist rate=0.1", exact=True),
    "tfdist, powersgd:4, rate 0.1": _keras("tfdist powersgd:4 rate=0.1"),
    "tfdist, local:8, fp16, rate 0.1": _keras("tfdist local every=8 compression=fp16 rate=0.1"),
    "tfdist, local:8, powersgd:32, rate 0.1": _keras("tfdist local every=8 compression=powersgd:32 rate=0.1"),
    "tfdist, local:4, powersgd:32, rate 0.1": _keras("tfdist local every=4 compression=powersgd:32 rate=0.1"),
    "tfdist, native, local:8, powersgd:32, rate 0.1": _keras(
        "tfdist native local every=8 compression=powersgd:32 rate=0.1"
    ),
    "tfdist, native, local:8, powersgd:32, overlap, rate 0.1": _keras(
        "tfdist native local every=8 compression=powersgd:32 overlap=1 rate=0.1"
    ),
    "tfdist, local:16, rate 0.1": _keras("tfdist local every=16 rate=0.1"),
    "tfdist, local:16, powersgd:64, rate 0.1": _keras("tfdist local every=16 compression=powersgd:64 rate=0.1"),
    "tfdist, post-local:16": _keras(f"tfdist local every=16 start={START}"),
    "tfdist, post-local:16, powersgd:32": _keras(f"tfdist local every=16 start={START} compression=powersgd:32"),
    "tfdist, DiLoCo:16": _keras("tfdist local every=16 outer=nesterov"),
    "tfdist, DiLoCo:16, rate 0.02": _keras("tfdist local every=16 outer=nesterov rate=0.02"),
    "tfdist, DiLoCo:8, powersgd:32": _keras("tfdist local every=8 outer=nesterov compression=powersgd:32"),
    "tfdist, DiLoCo:16, fp16": _keras("tfdist local every=16 outer=nesterov compression=fp16"),
    "tfdist, EASGD:16": _keras("tfdist local every=16 outer=elastic"),
    "tfdist, EASGD:16, powersgd:32": _keras("tfdist local every=16 outer=elastic compression=powersgd:32"),
    "tfdist, D-PSGD": _keras("tfdist native gossip mixing=exponential"),
    "tfdist, D-PSGD, ring": _keras("tfdist native gossip mixing=ring"),
    "tfdist, D-PSGD, one peer": _keras("tfdist native gossip mixing=one_peer_exponential"),
    "tfdist, CHOCO, topk:0.01": _keras("tfdist native gossip compression=topk:0.01 gamma=0.1"),
    "torch DDP": _torch("torch", exact=True),
    "torch DDP, fp16 hook": _torch("torch fp16"),
    "torch DDP, PowerSGD hook": _torch("torch powersgd:4"),
    "torch, local:16": _torch("torch local every=16"),
    "torch, post-local:16": _torch(f"torch local every=16 start={START}"),
    "Horovod": _horovod("horovod", exact=True),
    "Horovod, fp16": _horovod("horovod fp16"),
}
# Those of docs/benchmarks/communication.md, which sum gradients in every step.
SYNCHRONOUS = (
    "TensorFlow",
    "tfdist",
    "tfdist, fp16",
    "tfdist, topk:0.01",
    "tfdist, threshold:0.001",
    "tfdist, powersgd:4",
    "torch DDP",
    "torch DDP, fp16 hook",
    "torch DDP, PowerSGD hook",
    "Horovod",
    "Horovod, fp16",
)
