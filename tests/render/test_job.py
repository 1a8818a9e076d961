"""What a job needs, and which values have no meaning."""

from __future__ import annotations

from typing import Any

import pytest

from tfdist.render import SCHEDULERS, Job
from tfdist.render.job import seconds_in

NEEDED: dict[str, dict[str, Any]] = {
    "slurm": {},
    "jobset": {"image": "example.com/train:1"},
    "trainjob": {"image": "example.com/train:1"},
    "sagemaker": {
        "image": "123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1",
        "role": "arn:aws:iam::123456789012:role/train",
        "instance_type": "ml.g5.2xlarge",
        "output_s3": "s3://bucket/models",
    },
    "vertex": {"image": "europe-docker.pkg.dev/p/r/train:1", "region": "europe-west4", "machine_type": "n1-standard-8"},
    "ray": {},
}


@pytest.mark.parametrize("text", ["2:00:00", "0-2:00:00", "120m", "2h", "7200s"])
def test_two_hours_are_written_in_several_ways(text: str) -> None:
    assert seconds_in(text) == 7200


@pytest.mark.parametrize("text", ["30", "1:30", "2:60:00", "two hours", "", "-1h", "1.5h"])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as 2:00:00"):
        seconds_in(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"command": ()}, "expected a command after --, received none"),
        ({"command": ("",)}, "expected a command after --, received none"),
        ({"command": ("a", "b\0")}, "without the character NUL"),
        ({"nodes": 0}, "expected --nodes to be at least 1, received 0"),
        ({"tasks_per_node": True}, "expected --tasks-per-node to be at least 1, received True"),
        ({"seconds": 0}, "expected --time to be at least 1, received 0"),
        ({"max_restarts": -1}, "expected --max-restarts to be at least 0, received -1"),
        ({"gpus": -1}, "expected --gpus to be at least 0, received -1"),
        ({"env": {"A-B": "1"}}, "expected --env with a name of letters, digits and _, received 'A-B'"),
        (
            {"env": {"TF_CONFIG": "{}"}},
            "expected --env without variables that describe the cluster, received TF_CONFIG",
        ),
    ],
)
def test_values_without_a_meaning_are_refused_in_one_sentence(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        Job(**{"command": ("python", "train.py"), **fields})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "Train_Digits.py"), "train-digits"),
        (("python", "-m", "digits.train", "--x", "a.py"), "train"),
        (("/opt/bin/run", "x"), "run"),
        (("bash", "/opt/start.sh"), "start"),
        (("python", "3.py"), "training"),
        (("./" + "x" * 80 + ".py",), "x" * 20),
        (("python", "ä.py"), "training"),
    ],
)
def test_the_name_of_a_program_is_a_name_for_every_scheduler(
    scheduler: str, command: tuple[str, ...], name: str
) -> None:
    job = Job(command=command)
    assert job.name == name
    assert SCHEDULERS[scheduler].text(job, **NEEDED[scheduler])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_option_is_honoured_or_refused(scheduler: str) -> None:
    """Each field of a Job changes the file, or is refused with a reason."""
    changed = {
        "name": "other",
        "nodes": 3,
        "tasks_per_node": 2,
        "cpus": 4,
        "gpus": 1,
        "memory_gib": 16,
        "seconds": 7200,
        "env": {"A": "1"},
        "max_restarts": 5,
        "restart_failures": True,
        "grace_seconds": 90,
    }
    needed = dict(NEEDED[scheduler])
    if scheduler == "vertex":
        # The number of GPUs goes with their type, which is not an option of a Job.
        del changed["gpus"]
    plain = SCHEDULERS[scheduler].text(Job(command=("python", "train.py")), **needed)
    for field, value in changed.items():
        job = Job(command=("python", "train.py"), **{field: value})
        if field in SCHEDULERS[scheduler].refused:
            with pytest.raises(ValueError, match=r"^expected no --.* for .*, received .*; .*\.$"):
                SCHEDULERS[scheduler].text(job, **needed)
        elif scheduler in ("vertex", "ray") and field == "name":
            continue  # The name of a Vertex AI job is an option of gcloud; that of Ray is tested on its own.
        else:
            assert SCHEDULERS[scheduler].text(job, **needed) != plain, field
