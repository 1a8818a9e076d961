"""Trains one rank with torch's DistributedDataParallel over Gloo, with the communication hook of the method."""

from __future__ import annotations

import os

import numpy as np
import torch
from common import LEARNING_RATE, MOMENTUM, initial_weights, kernel_shapes, parse_arguments, run, total_steps
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
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
model = DistributedDataParallel(torch.nn.Sequential(*hidden, linear[-1]), **options)
if hook == "fp16":
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
elif hook.startswith("powersgd"):
    rank = int(hook.partition(":")[2])
    # The hook cannot compress before the second step. By default it compresses only after a thousand steps.
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
loss_of = torch.nn.CrossEntropyLoss()
data = np.load(arguments.data)
images, labels, test_images, test_labels = (torch.from_numpy(data[name]) for name in ("x", "y", "test_x", "test_y"))
steps = total_steps(arguments, len(images))
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)


def scaled(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32) / 255


def step(rows: np.ndarray) -> None:
    chosen = torch.from_numpy(rows).long()
    optimizer.zero_grad()
    loss_of(model(scaled(images[chosen])), labels[chosen].long()).backward()
    optimizer.step()
    schedule.step()


def accuracy() -> float:
    with torch.no_grad():
        return float((model.module(scaled(test_images)).argmax(1) == test_labels).double().mean())


run(arguments, len(images), step, lambda: None, accuracy)
torch.distributed.barrier()
os._exit(0)
