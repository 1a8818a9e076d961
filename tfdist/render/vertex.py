"""The configuration of a Vertex AI custom job: the first worker pool is the chief, the second one has the others.

Vertex AI starts a worker again that ends with another exit code than 0, up to five times, and then the job up to three
times; with `restartJobOnWorkerRestart` all workers start again with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tfdist.render.job import Job
from tfdist.render.kubernetes import literal, without_nothing
from tfdist.render.manifest import manifest
from tfdist.render.scheduler import Options, Scheduler, check_name, check_words

_OPTIONS: dict[str, dict[str, Any]] = {
    "--image": {"required": True, "help": "container image with the program, TensorFlow and tfdist"},
    "--region": {"required": True, "metavar": "NAME", "help": "region of the job, such as europe-west4"},
    "--machine-type": {"required": True, "metavar": "TYPE", "help": "type of the machines, such as n1-standard-8"},
    "--accelerator-type": {"metavar": "TYPE", "help": "type of the GPUs, such as NVIDIA_TESLA_T4; with --gpus"},
    "--nfs": {
        "action": "append",
        "metavar": "SERVER:PATH:NAME",
        "help": "directory of a file server that all workers have in /mnt/nfs/NAME, for snapshots; needs --network",
    },
    "--network": {"metavar": "NAME", "help": "network of the workers, such as projects/12345/global/networks/train"},
    "--service-account": {"metavar": "EMAIL", "help": "service account of the workers"},
    "--spot": {"action": "store_true", "help": "use spot machines"},
}
_COMMENT = """Made by: tfdist render vertex.
Vertex AI starts the workers again after exit code 75, with which a training says that it has saved its state, and after
every other code but 0."""


def yaml(
    job: Job,
    *,
    image: str,
    region: str,
    machine_type: str,
    accelerator_type: str | None = None,
    nfs: Sequence[str] = (),
    network: str | None = None,
    service_account: str | None = None,
    spot: bool = False,
) -> str:
    """Returns the configuration, as `gcloud ai custom-jobs create --config` reads it.

    Args:
        job: the job.
        image: container image with the program, TensorFlow and tfdist.
        region: region of the job, which is an option of gcloud.
        machine_type: type of the machines.
        accelerator_type: type of the GPUs.
        nfs: directories of file servers, such as "10.0.0.2:/export:runs", which is then in /mnt/nfs/runs.
        network: network of the workers.
        service_account: service account of the workers.
        spot: whether to use spot machines.

    Raises:
        ValueError: if Vertex AI does not allow a value.

    Source:
        "CustomJobSpec" in the reference of the Vertex AI API; "Understand the custom training service" in its
        documentation.

    Example:
        >>> text = yaml(Job(command=("python", "train.py"), nodes=4), image="i", region="europe-west4",
        ...             machine_type="n1-standard-8")
        >>> text.count("machineType"), text.count("restartJobOnWorkerRestart: true")
        (2, 1)
    """
    VERTEX.check(job)
    check_name(job, r"[\w.-]+", title="Vertex AI", most=128, rule="letters, digits, _, . and -")
    words = {"--image": image, "--region": region, "--machine-type": machine_type, "--network": network}
    check_words({**words, "--accelerator-type": accelerator_type, "--service-account": service_account})
    if bool(job.gpus) != bool(accelerator_type):
        raise ValueError("expected --gpus and --accelerator-type together, received one of them.")
    if nfs and not network:
        raise ValueError("expected --network with --nfs, received none.")
    pool = {
        "machineSpec": without_nothing(
            {
                "machineType": machine_type,
                "acceleratorType": accelerator_type,
                "acceleratorCount": job.gpus or None,
            }
        ),
        "nfsMounts": [_mount(one) for one in nfs],
        "containerSpec": without_nothing(
            {
                "imageUri": image,
                "command": [literal(word) for word in job.command],
                "env": [{"name": name, "value": literal(value)} for name, value in job.env.items()],
            }
        ),
    }
    counts = [1, job.nodes - 1] if job.nodes > 1 else [1]
    return manifest(
        without_nothing(
            {
                "workerPoolSpecs": [without_nothing({"replicaCount": count, **pool}) for count in counts],
                "scheduling": without_nothing(
                    {
                        "timeout": f"{job.seconds}s" if job.seconds else None,
                        "restartJobOnWorkerRestart": True,
                        "strategy": "SPOT" if spot else None,
                    }
                ),
                "network": network,
                "serviceAccount": service_account,
            }
        ),
        comment=_COMMENT,
    )


def _mount(text: str) -> dict[str, str]:
    found = re.fullmatch(r"(?P<server>[^:\s]+):(?P<path>/[^:\s]*):(?P<name>[A-Za-z0-9][\w-]*)", text)
    if not found:
        raise ValueError(f"expected --nfs SERVER:PATH:NAME such as 10.0.0.2:/export:runs, received {text!r}.")
    return {"server": found["server"], "path": found["path"], "mountPoint": found["name"]}


def _submit(file: str, job: Job, options: Options) -> str:
    return f"gcloud ai custom-jobs create --region={options['region']} --display-name={job.name} --config={file}"


_MACHINE = "the machine type decides it"
VERTEX = Scheduler(
    title="Vertex AI",
    help="the configuration of a Vertex AI custom job for gcloud",
    suffix=".yaml",
    options=_OPTIONS,
    refused={
        "tasks_per_node": "each machine is one worker, which uses all of its GPUs",
        "cpus": _MACHINE,
        "memory_gib": _MACHINE,
        "max_restarts": "Vertex AI has fixed numbers of restarts",
        "restart_failures": "Vertex AI starts a worker again after every exit code but 0",
        "grace_seconds": "Vertex AI has no such setting",
    },
    text=yaml,
    submit=_submit,
)
