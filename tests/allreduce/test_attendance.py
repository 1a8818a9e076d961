"""Attendance: what is stored and looked up in the coordination service, with a dictionary in its place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfdist.allreduce import attendance as module
from tfdist.allreduce.attendance import Attendance, describe


class Service:
    """Keeps keys as the coordination service does: a key that exists cannot be stored again."""

    def __init__(self):
        self.values, self.calls, self.available = {}, 0, True

    def _called(self):
        self.calls += 1
        if not self.available:
            raise tf.errors.UnavailableError(None, None, "no service")

    def set_config_key_value(self, key, value):
        self._called()
        if key in self.values:
            raise tf.errors.AlreadyExistsError(None, None, key)
        self.values[key] = value

    def get_config_key_value(self, key, timeout_in_ms):
        self._called()
        assert timeout_in_ms > 0
        if key not in self.values:
            raise tf.errors.DeadlineExceededError(None, None, key)
        return self.values[key]

    def delete_config_key_value(self, key):
        self._called()
        self.values.pop(key, None)


@pytest.fixture
def service(monkeypatch):
    service = Service()
    monkeypatch.setattr(module, "_service", lambda: service)
    return service


def attendance_of(task_type, task_id):
    spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1", "c:1"], "chief": ["d:1"]})
    resolver = SimpleNamespace(cluster_spec=lambda: spec, task_type=task_type, task_id=task_id)
    return Attendance(SimpleNamespace(cluster_resolver=resolver))


def test_a_worker_sees_who_waits_in_which_sum(service):
    chief, first, last = attendance_of("chief", 0), attendance_of("worker", 0), attendance_of("worker", 2)
    for waiting, number in ((chief, 5), (first, 5), (last, 6)):
        waiting.arrive(number)
    expected = {"chief 0": 5, "worker 0": 5, "worker 1": None, "worker 2": 6}
    assert chief.look_up() == last.look_up() == expected
    first.leave()
    assert chief.look_up() == {**expected, "worker 0": None}


def test_a_worker_that_goes_on_stores_its_new_number(service):
    chief, worker = attendance_of("chief", 0), attendance_of("worker", 1)
    worker.arrive(5)
    worker.leave()
    worker.arrive(7)
    worker.arrive(7)
    chief.arrive(7)
    assert chief.look_up()["worker 1"] == 7
    assert service.calls == 4 + 3


def test_a_worker_that_never_waits_calls_nothing(service):
    worker = attendance_of("worker", 1)
    for _ in range(3):
        worker.leave()
    assert service.calls == 0


def test_without_the_service_nothing_is_known(service):
    service.available = False
    worker = attendance_of("worker", 1)
    worker.arrive(5)
    assert worker.look_up() is None
    service.available = True
    worker.arrive(5)
    service.available = False
    assert worker.look_up() is None


@pytest.mark.parametrize(
    ("attendance", "whom"),
    [
        ({"worker 0": 5, "worker 1": None}, "worker 1"),
        ({"chief 0": None, "worker 0": 5, "worker 1": None}, "chief 0 and worker 1"),
        ({"worker 0": None, "worker 1": None, "worker 2": None, "worker 3": 1}, "worker 0, worker 1 and worker 2"),
        ({"worker 0": 5, "worker 1": 5}, "the network, since every worker waits in this sum"),
    ],
)
def test_the_workers_that_keep_a_sum_waiting_are_named(attendance, whom):
    assert describe(attendance) == whom
