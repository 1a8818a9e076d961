"""Trains with staleness on an in-process cluster, where workers pull and push in a given order; prints JSON."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tests.averaging.event_simulation import FEATURES, batch_of, events_of
from tests.averaging.in_process import leave, start_cluster
from tests.averaging.scenarios import SCENARIOS, WORKERS
from tfdist import create_strategy
from tfdist.averaging import Staleness, staleness_of
from tfdist.averaging.bound import keep_bound
from tfdist.averaging.versioned_updates import VersionedUpdates

_SECONDS = 60.0


class Gates:
    """Lets the workers read the weights and send their gradients in a given order."""

    def __init__(self) -> None:
        self._steps = [0] * WORKERS
        self._begin = [threading.Semaphore(0) for _ in range(WORKERS)]
        self._computed = [threading.Semaphore(0) for _ in range(WORKERS)]
        self._push = [threading.Semaphore(0) for _ in range(WORKERS)]
        self._pushed = [threading.Semaphore(0) for _ in range(WORKERS)]
        self._asked: set[int] = set()
        self._is_over = False

    def begin(self, worker: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """On a worker: waits until the worker may read the weights."""
        index = int(worker)
        self._wait(self._begin[index])
        step, self._steps[index] = self._steps[index], self._steps[index] + 1
        return *batch_of(index, step), not self._is_over

    def push(self, worker: np.ndarray, *_: np.ndarray) -> np.ndarray:
        """On a worker: waits until the worker may send its gradients."""
        self._computed[int(worker)].release()
        self._wait(self._push[int(worker)])
        return worker

    def pushed(self, worker: np.ndarray) -> np.ndarray:
        """On a worker: says that its gradients were used."""
        self._pushed[int(worker)].release()
        return worker

    def run(self, kind: str, worker: int) -> None:
        """In the script: lets a worker pull or push, and waits until it has done so.

        A worker that asks may pull, but the bound does not let it begin its step.
        """
        if kind == "ask":
            self._begin[worker].release()
            self._asked.add(worker)
            if self._computed[worker].acquire(timeout=0.1):
                raise RuntimeError(f"expected the bound to hold worker {worker} back")
        elif kind == "pull":
            if worker not in self._asked:
                self._begin[worker].release()
            self._asked.discard(worker)
            self._wait(self._computed[worker])
        else:
            self._push[worker].release()
            self._wait(self._pushed[worker])

    def end(self) -> None:
        """Lets all other steps end without training."""
        self._is_over = True
        for semaphores in (self._begin, self._push):
            for semaphore in semaphores:
                semaphore.release(1000)

    @staticmethod
    def _wait(semaphore: threading.Semaphore) -> None:
        if not semaphore.acquire(timeout=_SECONDS):
            raise TimeoutError("expected the other side of the script to go on")


def train(strategy: Any, scenario: Any) -> dict[str, Any]:
    """Runs one scenario and returns the same values as the simulation."""
    gates = Gates()
    with strategy.scope():
        if hasattr(tf.keras, "Variable"):
            w = tf.keras.Variable(np.zeros(FEATURES), dtype="float64")
            b = tf.keras.Variable(0.0, dtype="float64")
        else:
            w, b = tf.Variable(np.zeros(FEATURES)), tf.Variable(tf.zeros([], tf.float64))
        optimizer = scenario.optimizer()

    def replica_step(worker: Any, x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, tf.convert_to_tensor(w)) + tf.convert_to_tensor(b) - y) ** 2)
        variables = [getattr(v, "value", v) if hasattr(tf.keras, "Variable") else v for v in (w, b)]
        gradients = tape.gradient(loss, variables)
        with tf.control_dependencies([tf.numpy_function(gates.push, [worker, *gradients], tf.int64)]):
            gradients = [tf.identity(gradient) for gradient in gradients]
        optimizer.apply_gradients(zip(gradients, (w, b), strict=True))

    @tf.function(autograph=False)
    def step() -> Any:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        x, y, goes_on = tf.numpy_function(gates.begin, [worker], (tf.float64, tf.float64, tf.bool))
        x, y = tf.ensure_shape(x, [4, FEATURES]), tf.ensure_shape(y, [4])

        def run() -> Any:
            strategy.run(replica_step, args=(worker, x, y))
            return tf.zeros([])

        with tf.control_dependencies([tf.cond(goes_on, run, lambda: tf.zeros([]))]):
            return tf.numpy_function(gates.pushed, [worker], tf.int64)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    if scenario.staleness.bound is not None:
        keep_bound(strategy, scenario.staleness.bound)
    events = events_of(scenario, workers=WORKERS)
    for _ in range(scenario.steps + WORKERS):
        coordinator.schedule(step)
    counts = []
    for kind, worker in events:
        gates.run(kind, worker)
        if kind == "push":
            now = staleness_of(optimizer)
            counts.append([now.updates, now.applied, now.dropped, now.waiting])
    # Workers that have pulled and not pushed have not been counted; nor are they after the end.
    result = {
        "weights": np.append(np.asarray(w), np.asarray(b)).tolist(),
        "counts": counts,
        "histogram": list(staleness_of(optimizer).histogram),
        "iterations": int(np.asarray(optimizer.iterations)),
    }
    gates.end()
    coordinator.join()
    return result


def main() -> None:
    # TensorFlow runs Python code of a step in the coordinator, where each waiting function keeps a thread.
    tf.config.threading.set_inter_op_parallelism_threads(16)
    tf.keras.backend.set_floatx("float64")
    cluster = start_cluster(workers=WORKERS, ps=2)
    strategy = create_strategy(
        "parameter_server", cluster=cluster, startup_timeout_seconds=60, staleness=Staleness(scale=None)
    )
    results = {}
    for name, scenario in SCENARIOS.items():
        # A process connects to one cluster only, once.
        strategy.tfdist_updates = VersionedUpdates(strategy, scenario.staleness)
        results[name] = train(strategy, scenario)
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
    leave()


if __name__ == "__main__":
    main()
