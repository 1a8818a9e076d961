"""A JobSet of Kubernetes: an Indexed Job with one pod for each worker, and its headless service."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.render import kubernetes
from tfdist.render.job import Job
from tfdist.render.manifest import manifest
from tfdist.render.scheduler import Scheduler

_WORKERS = "worker"
_COMMENT = """Made by: tfdist render jobset.
A pod that ends with exit code 75 has saved its state: the JobSet starts all pods again, and the training goes on."""


def yaml(
    job: Job,
    *,
    image: str,
    namespace: str | None = None,
    volume: Sequence[str] = (),
    service_account: str | None = None,
) -> str:
    """Returns the JobSet of a job.

    Args:
        job: the job.
        image: container image with the program, TensorFlow and tfdist.
        namespace: namespace of the JobSet; None for that of kubectl.
        volume: persistent volume claims and the paths where the pods mount them, such as "runs:/mnt/runs".
        service_account: service account of the pods; None for the default one.

    Raises:
        ValueError: if Kubernetes does not allow a value.

    Source:
        "Failure policy" in the documentation of JobSet; "Pod failure policy" in that of Kubernetes.

    Example:
        >>> text = yaml(Job(command=("python", "train.py"), nodes=2), image="example.com/train:1")
        >>> print(text.splitlines()[3])
        kind: JobSet
    """
    JOBSET.check(job)
    kubernetes.check(
        job,
        replicated_job=_WORKERS,
        title="JobSet",
        image=image,
        namespace=namespace,
        volume=volume,
        service_account=service_account,
    )
    pod = kubernetes.pod(job, container="train", volume=volume, service_account=service_account)
    container = pod["containers"][0]
    pod["containers"] = [
        kubernetes.without_nothing(
            {
                "name": container["name"],
                "image": image,
                "command": [kubernetes.literal(word) for word in job.command],
                **{field: value for field, value in container.items() if field != "name"},
                "env": [*container["env"], *kubernetes.variables(job)],
                "resources": kubernetes.resources(job),
            }
        )
    ]
    return manifest(
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": kubernetes.without_nothing({"name": job.name, "namespace": namespace}),
            "spec": {
                "network": {"enableDNSHostnames": True, "subdomain": job.name},
                "failurePolicy": kubernetes.failure_policy(job),
                "replicatedJobs": [
                    {"name": _WORKERS, "replicas": 1, "template": {"spec": kubernetes.indexed_job(job, pod)}}
                ],
            },
        },
        comment=_COMMENT,
    )


JOBSET = Scheduler(
    title="JobSet",
    help="a JobSet for kubectl",
    suffix=".yaml",
    options=kubernetes.OPTIONS,
    refused=kubernetes.REFUSED,
    text=yaml,
    submit=lambda file, job, options: f"kubectl apply -f {file}",
)
