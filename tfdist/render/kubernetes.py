"""The pods that JobSet and Kubeflow Trainer have in common: one worker in each pod of an Indexed Job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.cluster.environments.kubernetes import PODS, SUBDOMAIN
from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.cluster.launched import ATTEMPT, LAUNCH_ID
from tfdist.render.job import GRACE_SECONDS, RESTARTS, Job
from tfdist.render.scheduler import check_name, check_words

REFUSED = {"tasks_per_node": "each pod is one worker, so give the number of workers as --nodes"}
OPTIONS: dict[str, dict[str, Any]] = {
    "--image": {"required": True, "help": "container image with the program, TensorFlow and tfdist"},
    "--namespace": {"metavar": "NAME", "help": "namespace (default: that of kubectl)"},
    "--volume": {
        "action": "append",
        "metavar": "CLAIM:PATH",
        "help": "persistent volume claim that all pods mount at a path, for snapshots and data; may be repeated",
    },
    "--service-account": {"metavar": "NAME", "help": "service account of the pods"},
}
_LABEL = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_RESTARTS = "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"
# The Job gives the name of a pod five random characters and a hyphen.
_LONGEST_LABEL, _RANDOM = 63, 6


def check(
    job: Job,
    *,
    replicated_job: str,
    title: str,
    image: str,
    namespace: str | None,
    volume: Sequence[str],
    service_account: str | None,
) -> None:
    """Raises ValueError for names that Kubernetes does not allow.

    Args:
        job: the job.
        replicated_job: name of the replicated job in the JobSet.
        title: name of the scheduler.
        image: container image.
        namespace: namespace of the job.
        volume: claims and paths.
        service_account: service account of the pods.
    """
    longest = _LONGEST_LABEL - _RANDOM - len(f"-{replicated_job}-0-{job.nodes - 1}")
    rule = "lower-case letters, digits and -, beginning with a letter"
    check_name(job, _LABEL, title=title, most=longest, rule=rule)
    check_words({"--image": image})
    # A namespace is a label of RFC 1123, a service account a subdomain, which may have dots.
    for option, value, dots in (("--namespace", namespace, ""), ("--service-account", service_account, ".")):
        if value is not None and not re.fullmatch(rf"[a-z0-9]([-a-z0-9{dots}]*[a-z0-9])?", value):
            raise ValueError(f"expected {option} to be lower-case letters, digits and -, received {value!r}.")
    paths = [_claim_and_path(one)[1] for one in volume]
    if len(set(paths)) != len(paths):
        raise ValueError(f"expected different paths in --volume, received {', '.join(paths)}.")


def pod(job: Job, *, container: str, volume: Sequence[str], service_account: str | None) -> dict[str, Any]:
    """Returns the specification of the pods, without what the program needs: its image, command and resources.

    Args:
        job: the job.
        container: name of the container.
        volume: claims and paths.
        service_account: service account of the pods.
    """
    claims = sorted({_claim_and_path(one)[0] for one in volume})
    names = {claim: f"volume-{number}" for number, claim in enumerate(claims)}
    mounts = [{"name": names[claim], "mountPath": path} for claim, path in map(_claim_and_path, volume)]
    return without_nothing(
        {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": job.grace_seconds or GRACE_SECONDS,
            "serviceAccountName": service_account,
            "containers": [
                without_nothing(
                    {
                        "name": container,
                        "env": [
                            {"name": PODS, "value": str(job.nodes)},
                            {"name": SUBDOMAIN, "value": job.name},
                            {"name": LAUNCH_ID, "value": job.name},
                            {"name": ATTEMPT, "valueFrom": {"fieldRef": {"fieldPath": _RESTARTS}}},
                        ],
                        "volumeMounts": mounts,
                    }
                )
            ],
            "volumes": [{"name": names[claim], "persistentVolumeClaim": {"claimName": claim}} for claim in claims],
        }
    )


def indexed_job(job: Job, template: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the specification of the Job with one pod for each worker.

    The Job fails at the first pod that fails. The reason of the Job tells exit code 75 and interruptions by Kubernetes
    from other failures.

    Args:
        job: the job.
        template: specification of the pods.
    """
    return without_nothing(
        {
            "completionMode": "Indexed",
            "completions": job.nodes,
            "parallelism": job.nodes,
            "backoffLimit": 0,
            "activeDeadlineSeconds": job.seconds,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [RESTART_CODE]}},
                    {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": {"spec": template},
        }
    )


def failure_policy(job: Job) -> dict[str, Any]:
    """Returns when the JobSet starts all pods again.

    Args:
        job: the job.
    """
    restart = {"name": "saved", "action": "RestartJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    deadline = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
    # A rule without reasons holds for all failures. A failure for which there is no rule restarts the JobSet.
    failed = {"name": "failed", "action": "FailJobSet"}
    return {
        "maxRestarts": RESTARTS if job.max_restarts is None else job.max_restarts,
        "rules": [deadline] if job.restart_failures else [restart, failed],
    }


def resources(job: Job) -> dict[str, Any]:
    """Returns the resources of a pod; empty if the job names none.

    Args:
        job: the job.
    """
    asked = {
        "cpu": job.cpus and str(job.cpus),
        "memory": job.memory_gib and f"{job.memory_gib}Gi",
        "nvidia.com/gpu": job.gpus and str(job.gpus),
    }
    given = {name: value for name, value in asked.items() if value}
    # Kubernetes wants the same number of GPUs in both, and ends a pod that needs more memory than its limit.
    limits = {name: value for name, value in given.items() if name != "cpu"}
    return without_nothing({"requests": given, "limits": limits})


def literal(text: str) -> str:
    """Returns a text that Kubernetes passes on as it is; it would replace $(NAME) by an environment variable.

    Args:
        text: word of the command, or value of a variable.

    Example:
        >>> literal("$(HOME)"), literal("$5")
        ('$$(HOME)', '$5')
    """
    # In `$$`, the first dollar sign escapes the second one, also where no bracket follows.
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


def variables(job: Job) -> list[dict[str, str]]:
    """Returns the environment variables of the program.

    Args:
        job: the job.
    """
    return [{"name": name, "value": literal(value)} for name, value in job.env.items()]


def without_nothing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that have a value.

    Args:
        fields: the fields; None, and an empty list or dict, are no value.
    """
    return {name: value for name, value in fields.items() if value is not None and value not in ([], {})}


def _claim_and_path(text: str) -> tuple[str, str]:
    claim, _, path = text.partition(":")
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", claim) or not re.fullmatch(r"/[^\s:]*", path):
        raise ValueError(f"expected --volume CLAIM:PATH such as runs:/mnt/runs, received {text!r}.")
    return claim, path
