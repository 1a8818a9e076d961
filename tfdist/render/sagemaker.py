"""The request that starts an Amazon SageMaker training job.

SageMaker starts a container on each instance. It starts the job again after an interruption of a spot instance, but not
after an exit code. The container therefore begins with `tfdist.render.sagemaker_entry`, which does that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.render.job import RESTARTS, Job
from tfdist.render.kubernetes import without_nothing
from tfdist.render.scheduler import Scheduler, check_name, check_words

_OPTIONS: dict[str, dict[str, Any]] = {
    "--image": {"required": True, "help": "container image with the program, TensorFlow and tfdist"},
    "--role": {"required": True, "metavar": "ARN", "help": "role of the training job"},
    "--instance-type": {"required": True, "metavar": "TYPE", "help": "type of the instances, such as ml.g5.2xlarge"},
    "--output-s3": {"required": True, "metavar": "S3URI", "help": "where SageMaker saves /opt/ml/model"},
    "--input": {
        "action": "append",
        "metavar": "NAME=S3URI",
        "help": "data that each instance has in /opt/ml/input/data/NAME; may be repeated",
    },
    "--checkpoints": {
        "metavar": "S3URI",
        "help": "where SageMaker keeps /opt/ml/checkpoints of a job with one instance",
    },
    "--file-system": {
        "metavar": "TYPE:ID:PATH",
        "help": "EFS or FSxLustre directory that all instances have in /opt/ml/input/data/shared, for snapshots, such "
        "as EFS:fs-0123456789abcdef0:/runs",
    },
    "--subnets": {"metavar": "IDS", "help": "subnets of the instances, separated by commas"},
    "--security-groups": {"metavar": "IDS", "help": "security groups of the instances, separated by commas"},
    "--volume-gib": {"type": int, "metavar": "N", "help": "disk of each instance in GiB (default: 30)"},
    "--spot": {
        "action": "store_true",
        "help": "use spot instances, and wait as long again as --time for them; needs --time",
    },
}
_ENTRY = ("python", "-m", "tfdist.render.sagemaker_entry")
_MOST_WORDS, _LONGEST_WORD, _LONGEST_VALUE, _MOST_RETRIES = 100, 256, 512, 30
_FILE_SYSTEM = re.compile(r"(?P<type>EFS|FSxLustre):(?P<id>fs-[0-9a-f]{8,17}):(?P<path>/\S*)")


def request(
    job: Job,
    *,
    image: str,
    role: str,
    instance_type: str,
    output_s3: str,
    input: Sequence[str] = (),
    checkpoints: str | None = None,
    file_system: str | None = None,
    subnets: str | None = None,
    security_groups: str | None = None,
    volume_gib: int = 30,
    spot: bool = False,
) -> str:
    """Returns the request as JSON, as `aws sagemaker create-training-job --cli-input-json` reads it.

    Args:
        job: the job.
        image: container image with the program, TensorFlow and tfdist.
        role: ARN of the role of the training job.
        instance_type: type of the instances.
        output_s3: where SageMaker saves /opt/ml/model.
        input: names and places of data, such as "train=s3://bucket/train".
        checkpoints: where SageMaker keeps /opt/ml/checkpoints.
        file_system: file system that all instances share, such as "EFS:fs-0123456789abcdef0:/runs".
        subnets: subnets of the instances, separated by commas.
        security_groups: security groups of the instances, separated by commas.
        volume_gib: disk of each instance in GiB.
        spot: whether to use spot instances.

    Raises:
        ValueError: if SageMaker does not allow a value.

    Source:
        "CreateTrainingJob" in the API reference of Amazon SageMaker.

    Example:
        >>> text = request(Job(command=("python", "train.py")), image="i", role="arn:aws:iam::123456789012:role/train",
        ...                instance_type="ml.m5.large", output_s3="s3://bucket/models")
        >>> json.loads(text)["TrainingJobName"]
        'train'
    """
    SAGEMAKER.check(job)
    rule = "letters, digits and single -"
    check_name(job, r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", title="SageMaker", most=63, rule=rule)
    check_words({"--image": image, "--subnets": subnets, "--security-groups": security_groups})
    _check(job, role=role, instance_type=instance_type, checkpoints=checkpoints, volume_gib=volume_gib, spot=spot)
    for option, place in {"--output-s3": output_s3, "--checkpoints": checkpoints}.items():
        _check_place(option, place)
    if file_system and not (subnets and security_groups):
        raise ValueError("expected --subnets and --security-groups with --file-system, received none.")
    if bool(subnets) != bool(security_groups):
        raise ValueError("expected --subnets and --security-groups together, received one of them.")
    most = RESTARTS if job.max_restarts is None else job.max_restarts
    failures = ["--restart-failures"] if job.restart_failures else []
    time = job.seconds
    fields = {
        "TrainingJobName": job.name,
        "RoleArn": role,
        "AlgorithmSpecification": {
            "TrainingImage": image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [*_ENTRY, "--max-restarts", str(most), *failures, "--"],
            "ContainerArguments": list(job.command),
        },
        "Environment": dict(job.env),
        "InputDataConfig": [*map(_channel, input), *([_shared(file_system)] if file_system else [])],
        "OutputDataConfig": {"S3OutputPath": output_s3},
        "ResourceConfig": {"InstanceCount": job.nodes, "InstanceType": instance_type, "VolumeSizeInGB": volume_gib},
        "VpcConfig": {"Subnets": subnets.split(","), "SecurityGroupIds": security_groups.split(",")}
        if subnets and security_groups
        else None,
        "StoppingCondition": without_nothing(
            {"MaxRuntimeInSeconds": time, "MaxWaitTimeInSeconds": 2 * time if spot and time else None}
        ),
        "EnableManagedSpotTraining": spot or None,
        "CheckpointConfig": {"S3Uri": checkpoints} if checkpoints else None,
        "RetryStrategy": {"MaximumRetryAttempts": min(most, _MOST_RETRIES)} if most else None,
    }
    return json.dumps(without_nothing(fields), indent=2, ensure_ascii=False) + "\n"


def _check(job: Job, *, role: str, instance_type: str, checkpoints: str | None, volume_gib: int, spot: bool) -> None:
    if not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:role/?[\w+=,.@/-]+", role):
        raise ValueError(f"expected --role such as arn:aws:iam::123456789012:role/train, received {role!r}.")
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", instance_type):
        raise ValueError(f"expected --instance-type such as ml.g5.2xlarge, received {instance_type!r}.")
    if type(volume_gib) is not int or volume_gib < 1:
        raise ValueError(f"expected --volume-gib to be at least 1, received {volume_gib!r}.")
    if len(job.command) > _MOST_WORDS or max(map(len, job.command)) > _LONGEST_WORD:
        raise ValueError(
            f"expected a command of at most {_MOST_WORDS} words of {_LONGEST_WORD} characters for SageMaker, received "
            f"{len(job.command)} words of up to {max(map(len, job.command))}; put it into a script of the image."
        )
    if any("\n" in word for word in job.command):
        raise ValueError("expected a command in one line for SageMaker, received several lines; put it into a script.")
    if len(job.env) > _MOST_WORDS or any(len(value) > _LONGEST_VALUE for value in job.env.values()):
        raise ValueError(
            f"expected at most {_MOST_WORDS} variables in --env with values of at most {_LONGEST_VALUE} characters for "
            "SageMaker, received more."
        )
    if checkpoints and job.nodes > 1:
        raise ValueError(
            f"expected --checkpoints with one instance, received --nodes {job.nodes}; SageMaker keeps a copy for each "
            "instance, and AutoResume needs one directory for all workers: use --file-system."
        )
    if spot and not job.seconds:
        raise ValueError(
            "expected --time with --spot, received none; SageMaker limits how long it waits for instances."
        )


def _check_place(option: str, place: str | None) -> None:
    if place is not None and not re.fullmatch(r"(s3|https)://[^/\s]+(/\S*)?", place):
        raise ValueError(f"expected {option} such as s3://bucket/path, received {place!r}.")


def _channel(text: str) -> dict[str, Any]:
    name, equals, place = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z0-9.\-_]{1,64}", name) or name == "shared":
        raise ValueError(f"expected --input NAME=S3URI such as train=s3://bucket/train, received {text!r}.")
    _check_place("--input", place)
    source = {"S3DataType": "S3Prefix", "S3Uri": place, "S3DataDistributionType": "FullyReplicated"}
    return {"ChannelName": name, "DataSource": {"S3DataSource": source}}


def _shared(text: str) -> Mapping[str, Any]:
    found = _FILE_SYSTEM.fullmatch(text)
    if not found:
        raise ValueError(
            f"expected --file-system such as EFS:fs-0123456789abcdef0:/runs or FSxLustre:..., received {text!r}."
        )
    source = {
        "FileSystemId": found["id"],
        "FileSystemType": found["type"],
        "FileSystemAccessMode": "rw",
        "DirectoryPath": found["path"],
    }
    return {"ChannelName": "shared", "DataSource": {"FileSystemDataSource": source}}


_INSTANCE = "the instance type decides it"
SAGEMAKER = Scheduler(
    title="SageMaker",
    help="the request of a SageMaker training job for the AWS command line",
    suffix=".json",
    options=_OPTIONS,
    refused={
        "tasks_per_node": "each instance is one worker, which uses all of its GPUs",
        "cpus": _INSTANCE,
        "gpus": _INSTANCE,
        "memory_gib": _INSTANCE,
        "grace_seconds": "SageMaker waits 120 s after SIGTERM",
    },
    text=request,
    submit=lambda file, job, options: f"aws sagemaker create-training-job --cli-input-json file://{file}",
)
