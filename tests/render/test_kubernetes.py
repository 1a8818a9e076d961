"""JobSets and TrainJobs have the fields of their APIs, and their pods find each other."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tfdist.cluster import ClusterConfig
from tfdist.cluster.launched import launched
from tfdist.render import Job, render

IMAGE = "example.com/train:1"
COMMAND = ("python", "train.py", "--rate", "1e-3", "two words", "$(HOME) $$(HOME) $5")
FULL = {
    "cpus": 4,
    "gpus": 1,
    "memory_gib": 16,
    "seconds": 7200,
    "env": {"RATE": "1e3", "YES": "yes", "PLACE": "$(HOME)"},
    "max_restarts": 5,
    "grace_seconds": 90,
}
VOLUMES = ("runs:/mnt/runs", "data:/data", "runs:/mnt/again")


def documents(scheduler: str, *, options: dict[str, Any] | None = None, **fields: Any) -> list[dict[str, Any]]:
    job = Job(**{"command": COMMAND, "name": "digits", "nodes": 3, **fields})
    return list(yaml.safe_load_all(render(scheduler, job, image=IMAGE, **(options or {}))))


def job_set_of(scheduler: str, **options: Any) -> dict[str, Any]:
    """Returns the specification of the JobSet that starts the pods, as Kubeflow Trainer makes it from a TrainJob."""
    found = documents(scheduler, **options)
    if scheduler == "jobset":
        return found[0]["spec"]
    runtime, job = found
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    spec, trainer = runtime["spec"]["template"]["spec"], job["spec"]["trainer"]
    (replicated,) = spec["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert replicated["template"]["spec"]["completions"] == trainer["numNodes"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == replicated["name"] == "node"
    container |= {"image": trainer["image"], "command": trainer["command"]}
    container["env"] = [*container["env"], *trainer.get("env", [])]
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    return spec


def pods_of(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def expanded(text: str) -> str:
    """Replaces $(NAME) and $$ as the kubelet does, for a pod in which no NAME is set to anything but WRONG."""
    return re.sub(r"\$\$|\$\([^)]*\)", lambda found: "$" if found[0] == "$$" else "WRONG", text)


def environment(spec: dict[str, Any], index: int, *, restarts: int = 0) -> dict[str, str]:
    """Returns the environment variables of a pod of the JobSet `digits`."""
    (container,) = pods_of(spec)["containers"]
    annotations = {"jobset.sigs.k8s.io/restart-attempt": str(restarts)}
    variables = {
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": f"digits-{spec['replicatedJobs'][0]['name']}-0-{index}",
    }
    for variable in container["env"]:
        if "value" in variable:
            variables[variable["name"]] = expanded(variable["value"])
        else:
            path = re.fullmatch(r"metadata\.annotations\['(.*)'\]", variable["valueFrom"]["fieldRef"]["fieldPath"])
            variables[variable["name"]] = annotations[path[1]]
    return variables


def checked(model: Any, document: dict[str, Any]) -> None:
    """Raises if a document lacks a field that the API needs, or has one that it does not know."""
    kept = model.from_dict(document).to_dict()
    assert kept == document


@pytest.mark.parametrize(
    "fields", [{}, FULL, {"restart_failures": True, "nodes": 1}], ids=["least", "full", "failures"]
)
@pytest.mark.parametrize("options", [{}, {"namespace": "ml", "volume": VOLUMES, "service_account": "train"}])
def test_documents_have_the_fields_of_the_apis(fields: dict[str, Any], options: dict[str, Any]) -> None:
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api has the models")
    (job_set,) = documents("jobset", options=options, **fields)
    runtime, job = documents("trainjob", options=options, **fields)
    checked(models.JobsetV1alpha2JobSet, job_set)
    checked(models.TrainerV1alpha1TrainingRuntime, runtime)
    checked(models.TrainerV1alpha1TrainJob, job)
    job_set["spec"]["failurePolicy"]["maxRestart"] = 3
    with pytest.raises(AssertionError):
        checked(models.JobsetV1alpha2JobSet, job_set)


@pytest.mark.parametrize("scheduler", ["jobset", "trainjob"])
def test_the_pods_find_each_other(scheduler: str) -> None:
    spec = job_set_of(scheduler, env={"PLACE": "$(HOME)"})
    name = spec["replicatedJobs"][0]["name"]
    for index in range(3):
        variables = environment(spec, index, restarts=2)
        cluster, start = ClusterConfig.detect(variables), launched(variables)
        assert (cluster.num_workers, cluster.task_index, cluster.source) == (3, index, "Kubernetes")
        # The names that JobSet documents, in the subdomain of its headless service.
        assert cluster.jobs["worker"] == tuple(f"digits-{name}-0-{pod}.digits:2222" for pod in range(3))
        assert spec["network"] == {"enableDNSHostnames": True, "subdomain": "digits"}
        assert start is not None and start.incarnation == "digits.2"
        assert variables["PLACE"] == "$(HOME)"
    alone = environment(job_set_of(scheduler, nodes=1), 0)
    assert ClusterConfig.detect(alone) == ClusterConfig()


@pytest.mark.parametrize("scheduler", ["jobset", "trainjob"])
def test_exit_code_75_starts_all_pods_again_and_other_codes_do_not(scheduler: str) -> None:
    spec = job_set_of(scheduler, **FULL)
    job = spec["replicatedJobs"][0]["template"]["spec"]
    assert (job["backoffLimit"], job["completionMode"], job["activeDeadlineSeconds"]) == (0, "Indexed", 7200)
    assert pods_of(spec)["restartPolicy"] == "Never"  # A podFailurePolicy needs it.
    assert pods_of(spec)["terminationGracePeriodSeconds"] == 90
    assert spec["failurePolicy"]["maxRestarts"] == 5
    assert [action_after(spec, reason) for reason in (reason_of(job, code=75), reason_of(job, evicted=True))] == [
        "RestartJobSet",
        "RestartJobSet",
    ]
    assert [action_after(spec, reason) for reason in (reason_of(job, code=1), "DeadlineExceeded")] == ["FailJobSet"] * 2
    failures = job_set_of(scheduler, restart_failures=True)
    assert action_after(failures, reason_of(job, code=1)) == action_after(failures, reason_of(job, code=75))
    assert action_after(failures, reason_of(job, code=1)) == "RestartJobSet"
    assert action_after(failures, "DeadlineExceeded") == "FailJobSet"
    assert failures["failurePolicy"]["maxRestarts"] == 100


def reason_of(job: dict[str, Any], *, code: int = 137, evicted: bool = False) -> str:
    """Returns why a Job fails whose pod fails: the first rule that matches decides, else the backoffLimit of 0."""
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"operator": "In", "values": []})
        assert codes["operator"] == "In" and rule["action"] == "FailJob"
        conditions = [(one["type"], one["status"]) for one in rule.get("onPodConditions", [])]
        if code in codes["values"] or (evicted and ("DisruptionTarget", "True") in conditions):
            return "PodFailurePolicy"
    return "BackoffLimitExceeded"


def action_after(spec: dict[str, Any], reason: str) -> str:
    """Returns what JobSet does after a Job has failed: the first rule that matches, else a restart."""
    for rule in spec["failurePolicy"]["rules"]:
        if reason in rule.get("onJobFailureReasons", [reason]):
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize("scheduler", ["jobset", "trainjob"])
def test_resources_and_volumes_are_those_of_the_options(scheduler: str) -> None:
    spec = job_set_of(scheduler, options={"volume": VOLUMES}, **FULL)
    (container,) = pods_of(spec)["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"},
        "limits": {"memory": "16Gi", "nvidia.com/gpu": "1"},
    }
    claims = {one["name"]: one["persistentVolumeClaim"]["claimName"] for one in pods_of(spec)["volumes"]}
    mounted = {mount["mountPath"]: claims[mount["name"]] for mount in container["volumeMounts"]}
    assert mounted == {"/mnt/runs": "runs", "/data": "data", "/mnt/again": "runs"}
    (least,) = pods_of(job_set_of(scheduler))["containers"]
    assert "resources" not in least and "volumeMounts" not in least


words = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=5)


@given(words)
def test_the_pods_run_the_command_as_it_is_written(arguments: list[str]) -> None:
    command = ("python", *arguments)
    (container,) = pods_of(job_set_of("jobset", command=command, env={f"A{n}": a for n, a in enumerate(arguments)}))[
        "containers"
    ]
    assert tuple(map(expanded, container["command"])) == command
    assert [expanded(variable["value"]) for variable in container["env"][4:]] == arguments


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_reads_every_word_as_a_text(tmp_path: Path) -> None:
    arguments = [
        "1e-3",
        "y",
        "No",
        "0x1f",
        "1_000",
        "",
        "~",
        "12:30",
        "null",
        ".inf",
        "a: b",
        "# c",
        "two\nlines",
        "ä\\",
    ]
    job = Job(command=("python", *arguments), name="digits", env={"RATE": "1e3", "ON": "on"})
    (tmp_path / "job.yaml").write_text(render("jobset", job, image=IMAGE))
    (tmp_path / "kustomization.yaml").write_text("resources: [job.yaml]\n")
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    (container,) = pods_of(yaml.safe_load(done.stdout)["spec"])["containers"]
    assert container["command"] == ["python", *arguments]
    assert [variable["value"] for variable in container["env"][-2:]] == ["1e3", "on"]


@pytest.mark.parametrize("scheduler", ["jobset", "trainjob"])
@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"name": "Digits"}, {}, "expected --name of at most .* lower-case letters, .* received 'Digits'"),
        ({"name": "1st"}, {}, "beginning with a letter, received '1st'"),
        ({"name": "d" * 49}, {}, "expected --name of at most 4. characters"),
        ({"tasks_per_node": 2}, {}, "expected no --tasks-per-node for .*, received 2; each pod is one worker"),
        ({}, {"image": "a b"}, "expected --image to be one word without quotes, received 'a b'"),
        ({}, {"namespace": "A"}, "expected --namespace to be lower-case letters"),
        ({}, {"service_account": "a/b"}, "expected --service-account to be lower-case"),
        ({}, {"volume": ["runs"]}, "expected --volume CLAIM:PATH such as runs:/mnt/runs, received 'runs'"),
        ({}, {"volume": ["a:/x", "b:/x"]}, "expected different paths in --volume, received /x, /x"),
    ],
)
def test_what_kubernetes_does_not_allow_is_refused(
    scheduler: str, fields: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    job = Job(**{"command": COMMAND, "name": "digits", **fields})
    with pytest.raises(ValueError, match=message) as raised:
        render(scheduler, job, **{"image": IMAGE, **options})
    assert "\n" not in str(raised.value)


def test_the_longest_name_leaves_room_for_the_names_of_the_pods() -> None:
    for nodes in (1, 10, 11, 1000):
        with pytest.raises(ValueError, match="at most") as raised:
            render("jobset", Job(command=COMMAND, name="d" * 63, nodes=nodes), image=IMAGE)
        most = int(re.search(r"at most (\d+)", str(raised.value))[1])
        assert len(f"{'d' * most}-worker-0-{nodes - 1}-abcde") == 63
