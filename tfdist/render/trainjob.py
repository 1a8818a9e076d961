"""A TrainJob of Kubeflow Trainer v2, and the TrainingRuntime that it refers to.

The runtimes that come with Kubeflow Trainer set no variables that name all pods, and do not tell exit codes apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.render import kubernetes
from tfdist.render.job import Job
from tfdist.render.manifest import manifest
from tfdist.render.scheduler import Scheduler

_API = "trainer.kubeflow.org/v1alpha1"
# Kubeflow Trainer looks for this container, and for this label.
_NODE = "node"
_TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
_COMMENT = """Made by: tfdist render trainjob.
A pod that ends with exit code 75 has saved its state: the JobSet of the TrainJob starts all pods again, and the
training goes on."""


def yaml(
    job: Job,
    *,
    image: str,
    namespace: str | None = None,
    volume: Sequence[str] = (),
    service_account: str | None = None,
) -> str:
    """Returns the TrainingRuntime and the TrainJob of a job.

    Args:
        job: the job.
        image: container image with the program, TensorFlow and tfdist.
        namespace: namespace of both; None for that of kubectl.
        volume: persistent volume claims and the paths where the pods mount them, such as "runs:/mnt/runs".
        service_account: service account of the pods; None for the default one.

    Raises:
        ValueError: if Kubernetes does not allow a value.

    Source:
        "Runtime guide" in the documentation of Kubeflow Trainer.

    Example:
        >>> text = yaml(Job(command=("python", "train.py"), nodes=2), image="example.com/train:1")
        >>> [line for line in text.splitlines() if line.startswith("kind:")]
        ['kind: TrainingRuntime', 'kind: TrainJob']
    """
    TRAINJOB.check(job)
    kubernetes.check(
        job,
        replicated_job=_NODE,
        title="Kubeflow Trainer",
        image=image,
        namespace=namespace,
        volume=volume,
        service_account=service_account,
    )
    pod = kubernetes.pod(job, container=_NODE, volume=volume, service_account=service_account)
    pod["containers"][0] = {"name": _NODE, "image": image, **pod["containers"][0]}
    metadata = kubernetes.without_nothing({"name": job.name, "namespace": namespace})
    runtime = {
        "apiVersion": _API,
        "kind": "TrainingRuntime",
        "metadata": metadata,
        "spec": {
            "mlPolicy": {"numNodes": job.nodes},
            "template": {
                "spec": {
                    "network": {"enableDNSHostnames": True, "subdomain": job.name},
                    "failurePolicy": kubernetes.failure_policy(job),
                    "replicatedJobs": [
                        {
                            "name": _NODE,
                            "replicas": 1,
                            "template": {
                                "metadata": {"labels": _TRAINER},
                                "spec": kubernetes.indexed_job(job, pod),
                            },
                        }
                    ],
                }
            },
        },
    }
    train_job = {
        "apiVersion": _API,
        "kind": "TrainJob",
        "metadata": metadata,
        "spec": {
            "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": job.name},
            "trainer": kubernetes.without_nothing(
                {
                    "numNodes": job.nodes,
                    "image": image,
                    "command": [kubernetes.literal(word) for word in job.command],
                    "env": kubernetes.variables(job),
                    "resourcesPerNode": kubernetes.resources(job),
                }
            ),
        },
    }
    return manifest(runtime, train_job, comment=_COMMENT)


TRAINJOB = Scheduler(
    title="Kubeflow Trainer",
    help="a TrainJob of Kubeflow Trainer v2, and its runtime, for kubectl",
    suffix=".yaml",
    options=kubernetes.OPTIONS,
    refused=kubernetes.REFUSED,
    text=yaml,
    submit=lambda file, job, options: f"kubectl apply -f {file}",
)
