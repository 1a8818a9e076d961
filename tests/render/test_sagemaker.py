"""Requests for SageMaker have the fields and limits of its API, and its containers find each other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT
from tests.render.test_job import NEEDED
from tfdist.render import Job, render

NEED = NEEDED["sagemaker"]
FILE_SYSTEM = {
    "file_system": "EFS:fs-0123456789abcdef0:/runs",
    "subnets": "subnet-1,subnet-2",
    "security_groups": "sg-1",
}


def request(*command: str, options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    job = Job(**{"command": command or ("python", "train.py"), "name": "digits", **fields})
    return json.loads(render("sagemaker", job, **{**NEED, **(options or {})}))


def broken(shape: Any, value: Any, at: str) -> list[str]:
    """Returns where a value breaks a limit of the service's model that botocore itself leaves to the service."""
    limits = shape.metadata
    if shape.type_name == "structure":
        return [text for name, one in value.items() for text in broken(shape.members[name], one, f"{at}.{name}")]
    if shape.type_name == "list":
        inner = [text for index, one in enumerate(value) for text in broken(shape.member, one, f"{at}[{index}]")]
        return inner + ([at] if not limits.get("min", 0) <= len(value) <= limits.get("max", len(value)) else [])
    if shape.type_name == "map":
        pairs = [(shape.key, key) for key in value] + [(shape.value, one) for one in value.values()]
        return [text for inner, one in pairs for text in broken(inner, one, f"{at}.{one}")]
    size = len(value) if isinstance(value, str) else value
    wrong = not limits.get("min", size) <= size <= limits.get("max", size)
    if isinstance(value, str):
        wrong |= bool(limits.get("pattern")) and not re.fullmatch(limits["pattern"], value)
        wrong |= bool(getattr(shape, "enum", None)) and value not in shape.enum
    return [at] if wrong else []


@pytest.fixture(scope="module")
def shape() -> Any:
    session = pytest.importorskip("botocore.session", reason="botocore has the model of SageMaker")
    return session.get_session().get_service_model("sagemaker").operation_model("CreateTrainingJob").input_shape


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"seconds": 7200, "max_restarts": 0, "env": {"A": "1"}}, {"spot": True, "checkpoints": "s3://bucket/runs"}),
        ({"nodes": 4, "restart_failures": True}, {**FILE_SYSTEM, "input": ["train=s3://b/t", "test=s3://b/e"]}),
        ({"command": ("x" * 256,) * 100, "name": "a" * 63}, {"volume_gib": 500}),
    ],
)
def test_requests_have_the_fields_and_limits_of_the_api(shape: Any, fields: dict[str, Any], options: Any) -> None:
    from botocore.validate import ParamValidator

    document = request(options=options, **fields)
    report = ParamValidator().validate(document, shape)
    assert not report.has_errors(), report.generate_report()
    assert broken(shape, document, "") == []


def test_a_wrong_request_would_be_noticed(shape: Any) -> None:
    from botocore.validate import ParamValidator

    document = request()
    assert ParamValidator().validate({**document, "SpotTraining": True}, shape).has_errors()
    document["TrainingJobName"] = "a b"
    document["ResourceConfig"]["InstanceType"] = "ml.none.large"
    document["AlgorithmSpecification"]["ContainerArguments"] = ["x" * 257]
    assert broken(shape, document, "") == [
        ".TrainingJobName",
        ".AlgorithmSpecification.ContainerArguments[0]",
        ".ResourceConfig.InstanceType",
    ]


def test_spot_instances_are_awaited_and_snapshots_are_kept() -> None:
    document = request(seconds=3600, options={"spot": True, "checkpoints": "s3://bucket/runs"})
    assert document["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert document["CheckpointConfig"] == {"S3Uri": "s3://bucket/runs"}
    assert document["RetryStrategy"] == {"MaximumRetryAttempts": 30}
    assert "RetryStrategy" not in request(max_restarts=0)
    shared = request(nodes=2, options=FILE_SYSTEM)["InputDataConfig"]
    assert [channel["ChannelName"] for channel in shared] == ["shared"]
    assert shared[0]["DataSource"]["FileSystemDataSource"]["FileSystemAccessMode"] == "rw"


PROGRAM = """
    import os, signal, sys, time
    from tfdist.cluster import ClusterConfig
    from tfdist.cluster.launched import launched

    cluster, start = ClusterConfig.detect(), launched()
    print("TASK", start.incarnation, cluster.task_index, cluster.source, ",".join(cluster.jobs["worker"]), sys.argv[1:])
    sys.stdout.flush()
    if "wait" in sys.argv:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(75))
        print("READY", flush=True)
        time.sleep(60)
    sys.exit(int(sys.argv[1 + start.attempt]))
"""


def container(*arguments: str, folder: Path, host: str = "algo-2", **fields: Any) -> subprocess.Popen[str]:
    """Starts what SageMaker starts in the container of a host."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    config = folder / "resourceconfig.json"
    # As in "Distributed Training Configuration" of the documentation of SageMaker.
    config.write_text(
        json.dumps({"current_host": host, "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth0"})
    )
    document = request(sys.executable, "program.py", *arguments, nodes=2, **fields)["AlgorithmSpecification"]
    python, option, module, *rest = [*document["ContainerEntrypoint"], *document["ContainerArguments"]]
    assert (python, option) == ("python", "-m")
    program = (
        f"import sys; from pathlib import Path; from {module} import main; "
        f"sys.exit(main(sys.argv[1:], resource_config=Path({str(config)!r})))"
    )
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TRAINING_JOB_NAME": "digits"}
    return subprocess.Popen(
        [sys.executable, "-c", program, *rest],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_is_run_again_after_75_in_containers_that_find_each_other(tmp_path: Path) -> None:
    process = container("75", "75", "3", "two words", folder=tmp_path)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 3, text
    hosts = "SageMaker algo-1:2222,algo-2:2222 ['75', '75', '3', 'two words']"
    assert [line for line in text.splitlines() if line.startswith("TASK")] == [
        f"TASK digits.{attempt} 1 {hosts}" for attempt in range(3)
    ]


@pytest.mark.parametrize(
    ("codes", "fields", "code", "starts"),
    [
        (["75", "75"], {"max_restarts": 1}, 75, 2),
        (["1", "0"], {}, 1, 1),
        (["1", "0"], {"restart_failures": True}, 0, 2),
        (["75"], {"max_restarts": 0}, 75, 1),
    ],
)
def test_other_codes_and_too_many_restarts_end_the_container(
    codes: list[str], fields: dict[str, Any], code: int, starts: int, tmp_path: Path
) -> None:
    process = container(*codes, folder=tmp_path, **fields)
    text, _ = process.communicate(timeout=120)
    assert (process.returncode, text.count("TASK")) == (code, starts), text


def test_sigterm_is_passed_on_and_the_command_is_not_run_again(tmp_path: Path) -> None:
    process = container("0", "0", "wait", folder=tmp_path, host="algo-1")
    try:
        lines = iter(process.stdout.readline, "")
        assert any(line == "READY\n" for line in lines)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 75
        assert time.monotonic() - began < 20 and not any("TASK" in line for line in lines)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"name": "a_b"}, {}, "expected --name of at most 63 characters for SageMaker, .* received 'a_b'"),
        ({"gpus": 1}, {}, "expected no --gpus for SageMaker, received 1; the instance type decides it"),
        ({"grace_seconds": 9}, {}, "expected no --grace-seconds for SageMaker, .*SageMaker waits 120 s after SIGTERM"),
        ({"command": ("x" * 257,)}, {}, "expected a command of at most 100 words of 256 characters"),
        ({"command": ("python", "-c", "a\nb")}, {}, "expected a command in one line for SageMaker"),
        ({"env": {"A": "x" * 513}}, {}, "expected at most 100 variables in --env with values of at most 512"),
        ({}, {"role": "train"}, "expected --role such as arn:aws:iam::123456789012:role/train, received 'train'"),
        ({}, {"instance_type": "g5"}, "expected --instance-type such as ml.g5.2xlarge, received 'g5'"),
        ({}, {"output_s3": "bucket"}, "expected --output-s3 such as s3://bucket/path, received 'bucket'"),
        ({}, {"input": ["s3://b/t"]}, "expected --input NAME=S3URI"),
        ({}, {"volume_gib": 0}, "expected --volume-gib to be at least 1, received 0"),
        ({}, {"spot": True}, "expected --time with --spot, received none"),
        ({"nodes": 2}, {"checkpoints": "s3://b/c"}, "expected --checkpoints with one instance, received --nodes 2"),
        (
            {},
            {"file_system": "EFS:fs-0123456789abcdef0:/r"},
            "expected --subnets and --security-groups with --file-sys",
        ),
        ({}, {**FILE_SYSTEM, "file_system": "fs-1"}, "expected --file-system such as EFS:"),
        ({}, {"subnets": "subnet-1"}, "expected --subnets and --security-groups together"),
    ],
)
def test_what_sagemaker_does_not_allow_is_refused(fields: dict[str, Any], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        request(options=options, **fields)
    assert "\n" not in str(raised.value)
