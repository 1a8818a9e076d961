from __future__ import annotations

from tfdist.cluster import ClusterConfig, Task


def test_a_task_is_named_by_its_job_and_index():
    task = Task("ps", 3, "p:1")
    assert (task.name, str(task)) == ("ps 3", "ps 3 at p:1")


def test_a_task_without_an_address_is_shown_by_its_name_alone():
    assert str(Task("evaluator", 0)) == "evaluator 0"


def test_peers_and_config_give_a_task_the_same_name():
    configs = [ClusterConfig(jobs={"worker": ["a:1", "b:1"]}, task_type="worker", task_index=index) for index in (0, 1)]
    (peer,) = configs[0].peers()
    assert (peer.name, peer.address) == (configs[1].task_name, configs[1].address)
