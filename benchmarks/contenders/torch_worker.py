"""Trains one rank with torch over Gloo: DistributedDataParallel with the communication hook of the method.

The method "torch local NAME=VALUE..." averages weights with PeriodicModelAverager after every `every` steps. With the
setting start, DistributedDataParallel with post_localSGD_hook makes this number of synchronous steps before, and the
optimizer is PostLocalSGDOptimizer.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from common import (
    LEARNING_RATE,
    MOMENTUM,
    Rounds,
    initial_weights,
    kernel_shapes,
    parse_arguments,
    rounds_of,
    run,
    settings_of,
    total_steps,
)
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

arguments = parse_arguments()
addresses = arguments.addresses.split(",")
os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.distributed.init_process_group(
    "gloo", init_method=f"tcp://{addresses[0]}:5001", rank=arguments.rank, world_size=len(addresses)
)
linear = [torch.nn.Linear(*shape) for shape in kernel_shapes(arguments)]
weights = initial_weights(arguments)
with torch.no_grad():
    for i, layer in enumerate(linear):
        layer.weight.copy_(torch.from_numpy(weights[2 * i].T.copy()))
        layer.bias.copy_(torch.from_numpy(weights[2 * i + 1]))
hook = arguments.method.partition(" ")[2]
# The PowerSGD hook gets one bucket: with several, the ranks start collectives in different orders, and Gloo fails.
options = {"bucket_cap_mb": 100} if hook.startswith("powersgd") else {}
hidden = [module for layer in linear[:-1] for module in (layer, torch.nn.ReLU())]
settings = settings_of(hook.removeprefix("local")) if hook.startswith("local ") else {}
rounds = rounds_of(arguments, settings) if settings else Rounds()
bare = torch.nn.Sequential(*hidden, linear[-1])
# Without synchronous steps there are no gradients to sum.
model = bare if settings and not rounds.start else DistributedDataParallel(bare, **options)
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook.startswith("powersgd"):
    rank = int(hook.partition(":")[2])
    # The hook cannot compress before the second step. By default it compresses only after a thousand steps.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
elif rounds.start:
    local = post_localSGD_hook.PostLocalSGDState(None, None, rounds.start, post_local_gradient_allreduce=False)
    model.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
optimizer = torch.optim.SGD(bare.parameters(), lr=float(settings.get("rate", LEARNING_RATE)), momentum=MOMENTUM)
loss_of = torch.nn.CrossEntropyLoss()
data = np.load(arguments.data)
images, labels, test_images, test_labels = (torch.from_numpy(data[name]) for name in ("x", "y", "test_x", "test_y"))
steps = total_steps(arguments, len(images))
averaging = optimizer
if settings:
    # The averager's first meeting is in the step after its warmup steps.
    averager = PeriodicModelAverager(period=rounds.every, warmup_steps=rounds.start + rounds.every - 1)
    averaging = PostLocalSGDOptimizer(optimizer, averager)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)


def scaled(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32) / 255


def step(rows: np.ndarray) -> None:
    chosen = torch.from_numpy(rows).long()
    optimizer.zero_grad()
    loss_of(model(scaled(images[chosen])), labels[chosen].long()).backward()
    averaging.step()
    schedule.step()


def accuracy() -> float:
    with torch.no_grad():
        parameters = dict(bare.named_parameters())
        if settings:
            parameters = {name: value.clone() for name, value in parameters.items()}
            for value in parameters.values():
                torch.distributed.all_reduce(value.div_(len(addresses)))
        found = torch.func.functional_call(bare, parameters, (scaled(test_images),))
        return float((found.argmax(1) == test_labels).double().mean())


run(arguments, len(images), step, lambda: None, accuracy, rounds)
torch.distributed.barrier()
os._exit(0)
