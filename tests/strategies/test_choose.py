from __future__ import annotations

import pytest

from tfdist.cluster import ClusterConfig
from tfdist.strategies.create import Choice, choose_strategy

ALONE = ClusterConfig()
ONE_WORKER = ClusterConfig(jobs={"worker": ["a:1"]}, task_type="worker")
TWO_WORKERS = ClusterConfig(jobs={"worker": ["a:1", "b:1"]}, task_type="worker", task_index=1)
CHIEF_AND_WORKER = ClusterConfig(jobs={"chief": ["a:1"], "worker": ["b:1"]}, task_type="chief")
WITH_PS = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
COORDINATOR = ClusterConfig(jobs=WITH_PS, task_type="chief")
PS = ClusterConfig(jobs=WITH_PS, task_type="ps")
EVALUATOR = ClusterConfig(jobs={"worker": ["a:1", "b:1"], "evaluator": ["e:1"]}, task_type="evaluator")
NO_GPU = "this machine has no GPU and no TF_CONFIG names other workers"
ONE_GPU = "this machine has 1 GPU and no TF_CONFIG names other workers"
OUTSIDE = "this task is the evaluator, outside the cluster, and "


@pytest.mark.parametrize(
    ("cluster", "num_gpus", "tpu_source", "devices", "expected"),
    [
        (ALONE, 0, None, None, ("one_device", NO_GPU)),
        (ALONE, 1, None, None, ("one_device", ONE_GPU)),
        (ALONE, 4, None, None, ("mirrored", "this machine has 4 GPUs")),
        (ALONE, 0, None, 1, ("one_device", "1 device asked for")),
        (ALONE, 0, None, 2, ("mirrored", "2 devices asked for")),
        (ALONE, 4, None, ["GPU:3"], ("one_device", "1 device asked for")),
        (ALONE, 4, None, ["CPU:0", "CPU:1"], ("mirrored", "2 devices asked for")),
        (ALONE, 0, "TPU_NAME is 'x'", None, ("tpu", "a TPU was found: TPU_NAME is 'x'")),
        (ALONE, 4, "TPU_NAME is 'x'", None, ("tpu", "a TPU was found: TPU_NAME is 'x'")),
        (ONE_WORKER, 0, None, None, ("one_device", NO_GPU)),
        (ONE_WORKER, 2, None, None, ("mirrored", "this machine has 2 GPUs")),
        (TWO_WORKERS, 0, None, None, ("multi_worker_mirrored", "the cluster has 2 workers")),
        (TWO_WORKERS, 8, None, None, ("multi_worker_mirrored", "the cluster has 2 workers")),
        (TWO_WORKERS, 0, "a pod", None, ("multi_worker_mirrored", "the cluster has 2 workers")),
        (CHIEF_AND_WORKER, 0, None, None, ("multi_worker_mirrored", "the cluster has 2 workers")),
        (COORDINATOR, 0, None, None, ("parameter_server", "the cluster has 2 workers and 1 ps")),
        (PS, 2, "a pod", None, ("parameter_server", "the cluster has 2 workers and 1 ps")),
        (EVALUATOR, 0, None, None, ("one_device", OUTSIDE + NO_GPU)),
        (EVALUATOR, 2, None, None, ("mirrored", OUTSIDE + "this machine has 2 GPUs")),
        (EVALUATOR, 0, "a pod", None, ("one_device", OUTSIDE + NO_GPU)),
    ],
)
def test_auto_chooses_a_strategy_and_gives_the_reason(cluster, num_gpus, tpu_source, devices, expected):
    assert choose_strategy(cluster, num_gpus=num_gpus, tpu_source=tpu_source, devices=devices) == Choice(*expected)
