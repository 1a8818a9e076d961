"""Configurations for Vertex AI have the fields of its API, and its worker pools are what tfdist reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from tests.render.test_job import NEEDED
from tfdist.cluster import ClusterConfig
from tfdist.render import Job, render

FULL = {"nodes": 3, "gpus": 2, "seconds": 7200, "env": {"RATE": "1e3"}}
OPTIONS = {
    "accelerator_type": "NVIDIA_TESLA_T4",
    "nfs": ["10.0.0.2:/export:runs"],
    "network": "projects/12345/global/networks/train",
    "service_account": "train@project.iam.gserviceaccount.com",
    "spot": True,
}


def configuration(*, options: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    job = Job(**{"command": ("python", "train.py", "--rate", "1e-3"), "name": "digits", **fields})
    return yaml.safe_load(render("vertex", job, **{**NEEDED["vertex"], **(options or {})}))


@pytest.mark.parametrize(("fields", "options"), [({}, {}), ({"nodes": 2}, {}), (FULL, OPTIONS)])
def test_configurations_have_the_fields_of_the_api(fields: dict[str, Any], options: dict[str, Any]) -> None:
    reason = "google-cloud-aiplatform has the types of the API, and is too large for the extra `test`"
    types = pytest.importorskip("google.cloud.aiplatform_v1.types", reason=reason)
    document = configuration(options=options, **fields)
    # from_json raises for a field that the message does not have, and for values of another type or enumeration.
    message = types.CustomJobSpec.from_json(json.dumps(document), ignore_unknown_fields=False)
    assert [pool.replica_count for pool in message.worker_pool_specs] == [
        pool["replicaCount"] for pool in document["workerPoolSpecs"]
    ]
    assert message.scheduling.restart_job_on_worker_restart and not message.scheduling.disable_retries
    document["scheduling"]["restartOnFailure"] = True
    with pytest.raises(Exception, match="restartOnFailure"):
        types.CustomJobSpec.from_json(json.dumps(document), ignore_unknown_fields=False)


def test_all_options_are_in_the_configuration() -> None:
    document = configuration(options=OPTIONS, **FULL)
    pools = document["workerPoolSpecs"]
    assert [pool.pop("replicaCount") for pool in pools] == [1, 2] and pools[0] == pools[1]
    assert pools[0] == {
        "machineSpec": {
            "machineType": "n1-standard-8",
            "acceleratorType": "NVIDIA_TESLA_T4",
            "acceleratorCount": 2,
        },
        "nfsMounts": [{"server": "10.0.0.2", "path": "/export", "mountPoint": "runs"}],
        "containerSpec": {
            "imageUri": "europe-docker.pkg.dev/p/r/train:1",
            "command": ["python", "train.py", "--rate", "1e-3"],
            "env": [{"name": "RATE", "value": "1e3"}],
        },
    }
    assert document["scheduling"] == {"timeout": "7200s", "restartJobOnWorkerRestart": True, "strategy": "SPOT"}
    assert (document["network"], document["serviceAccount"]) == (OPTIONS["network"], OPTIONS["service_account"])


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_the_worker_pools_are_the_cluster_that_tfdist_reads(nodes: int) -> None:
    # Vertex AI numbers the pools in their order, and writes CLUSTER_SPEC from them.
    counts = [pool["replicaCount"] for pool in configuration(nodes=nodes)["workerPoolSpecs"]]
    pools = {
        f"workerpool{pool}": [f"cmle-training-workerpool{pool}-ab-{index}:2222" for index in range(count)]
        for pool, count in enumerate(counts)
    }
    tasks = [(pool, index) for pool, addresses in pools.items() for index in range(len(addresses))]
    found = set()
    for pool, index in tasks:
        task = {"type": pool, "index": index, "trial": "1"}
        variables = {"CLUSTER_SPEC": json.dumps({"cluster": pools, "task": task, "environment": "cloud"})}
        cluster = ClusterConfig.detect(variables)
        assert cluster.num_workers == nodes
        found.add((cluster.task_name, cluster.is_chief))
    assert len(found) == nodes and sum(is_chief for _, is_chief in found) == 1


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        ({"name": "a b"}, {}, "expected --name of at most 128 characters for Vertex AI, .* received 'a b'"),
        ({"max_restarts": 5}, {}, "expected no --max-restarts for Vertex AI, received 5; Vertex AI has fixed numbers"),
        (
            {"restart_failures": True},
            {},
            "expected no --restart-failures for Vertex AI, received True; Vertex AI starts",
        ),
        ({"cpus": 4}, {}, "expected no --cpus for Vertex AI, received 4; the machine type decides it"),
        ({"gpus": 1}, {}, "expected --gpus and --accelerator-type together, received one of them"),
        ({}, {"accelerator_type": "NVIDIA_L4"}, "expected --gpus and --accelerator-type together"),
        ({}, {"nfs": ["10.0.0.2:/e:r"]}, "expected --network with --nfs, received none"),
        ({}, {"nfs": ["/e"], "network": "n"}, "expected --nfs SERVER:PATH:NAME such as 10.0.0.2:/export:runs"),
        ({}, {"region": "a b"}, "expected --region to be one word without quotes"),
    ],
)
def test_what_vertex_does_not_allow_is_refused(fields: dict[str, Any], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        configuration(options=options, **fields)
    assert "\n" not in str(raised.value)


def test_references_to_variables_reach_the_program_as_they_are() -> None:
    document = configuration(command=("sh", "-c", "echo $(HOME)"), env={"A": "$(PATH)"})
    spec = document["workerPoolSpecs"][0]["containerSpec"]
    assert (spec["command"][2], spec["env"]) == ("echo $$(HOME)", [{"name": "A", "value": "$$(PATH)"}])
