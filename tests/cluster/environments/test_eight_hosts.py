"""Eight workers on eight hosts find each other under each scheduler, and train the model of one device.

The hosts are network namespaces with a name each. The schedulers are represented by the variables that they set; test
files beside this one start the schedulers that run here. It needs root and network namespaces.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from benchmarks.namespaces import hosts
from tests.cluster.environments import on_host
from tests.cluster.environments.training import PROGRAM, check_weights
from tests.processes import VARIABLES
from tests.warm.client import WarmPopen

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"), reason="needs root and iproute2"
    ),
]
WORKERS = 8
DEADLINE_SECONDS = 300.0


def of_slurm(index: int, names: list[str]) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(index),
        "SLURM_NODEID": str(index),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": str(len(names)),
        "SLURM_STEP_NODELIST": f"n[8-{7 + len(names)}]",
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{len(names)})",
    }


def of_sagemaker(index: int, names: list[str]) -> dict[str, str]:
    return {"SM_HOSTS": json.dumps(names), "SM_CURRENT_HOST": names[index], "SM_NUM_GPUS": "0"}


def of_kubernetes(index: int, names: list[str]) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": names[index].partition(".")[0],
        "TFDIST_PODS": str(len(names)),
        "TFDIST_SUBDOMAIN": "headless-svc",
    }


def of_trainer(index: int, names: list[str]) -> dict[str, str]:
    return {"PET_NNODES": str(len(names)), "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": names[0]}


def of_jsrun(index: int, names: list[str]) -> dict[str, str]:
    return {
        "LSB_JOBID": "4711",
        "LSB_MCPU_HOSTS": " ".join(["batch1 1", *(f"{name} 42" for name in names)]),
        "JSM_NAMESPACE_RANK": str(index),
        "JSM_NAMESPACE_SIZE": str(len(names)),
        "JSM_NAMESPACE_LOCAL_RANK": "0",
    }


def of_open_mpi(index: int, names: list[str]) -> dict[str, str]:
    return {
        "OMPI_COMM_WORLD_RANK": str(index),
        "OMPI_COMM_WORLD_SIZE": str(len(names)),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "PMIX_NAMESPACE": f"prterun-{names[0]}-4711@1",
    }


def of_vertex(index: int, names: list[str]) -> dict[str, str]:
    cluster = {"workerpool0": [f"{names[0]}:2222"], "workerpool1": [f"{name}:2222" for name in names[1:]]}
    task = {"type": "workerpool1", "index": index - 1} if index else {"type": "workerpool0", "index": 0}
    return {"CLUSTER_SPEC": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def of_tf_config(index: int, names: list[str]) -> dict[str, str]:
    cluster = {"worker": [f"{name}:2222" for name in names]}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}


# What the hosts are called, and what the scheduler tells each task.
SCHEDULERS: dict[str, tuple[str, Callable[[int, list[str]], dict[str, str]]]] = {
    "Slurm": ("n{eight}", of_slurm),
    "SageMaker": ("algo-{one}", of_sagemaker),
    "Kubernetes": ("train-{zero}.headless-svc", of_kubernetes),
    "Kubeflow Trainer": ("job-node-0-{zero}.job", of_trainer),
    "LSF": ("h41n{eight}", of_jsrun),
    "MPI": ("node{one}", of_open_mpi),
    "Vertex AI": ("cmle-training-{zero}", of_vertex),
    "TF_CONFIG": ("tfjob-worker-{zero}.ns.svc", of_tf_config),
}


@pytest.fixture(scope="module")
def machines():
    with hosts(WORKERS, rate=None) as made:
        yield made


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_eight_workers_on_eight_hosts_train_the_model_of_one_device(scheduler, machines, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    pattern, variables = SCHEDULERS[scheduler]
    names = [pattern.format(zero=index, one=index + 1, eight=index + 8) for index in range(WORKERS)]
    lines = [f"{machine.address} {name}\n" for machine, name in zip(machines, names, strict=True)]
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
    files = [str(tmp_path / "hosts"), str(tmp_path / "program.py")]
    started = []
    for index, machine in enumerate(machines):
        with (tmp_path / f"{index}.log").open("wb") as log:
            process = WarmPopen(
                [sys.executable, on_host.__file__, machine.namespace, names[index].partition(".")[0], *files],
                cwd=tmp_path,
                # All workers share two cores.
                env={**os.environ, **VARIABLES, "TF_NUM_INTRAOP_THREADS": "1", **variables(index, names)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started.append(process)
    codes = ended(started)
    texts = [(tmp_path / f"{index}.log").read_text(errors="replace") for index in range(WORKERS)]
    for index, text in enumerate(texts):
        print(f"---- worker {index}\n{text[-4000:]}")
    assert codes == [0] * WORKERS
    # TF_CONFIG is named as any other source is.
    assert all(f"the cluster has {WORKERS} workers ({scheduler})" in text for text in texts)
    check_weights("\n".join(texts), tmp_path, workers=WORKERS)


def ended(processes: list[WarmPopen]) -> list[int | None]:
    """Returns the exit codes; after the deadline, or a failure of one, kills the sessions of the others."""
    codes: list[int | None] = []
    try:
        for process in processes:
            codes.append(process.wait(timeout=DEADLINE_SECONDS))
            if codes[-1]:
                break
    except subprocess.TimeoutExpired:
        codes.append(None)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return codes
