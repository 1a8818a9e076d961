"""The mesh of a strategy: a worker that alone opens it learns which callbacks are missing on the others."""

from __future__ import annotations

import importlib

import pytest
import tensorflow as tf

mesh_of = importlib.import_module("tfdist.watch.mesh_of")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            tf.errors.InternalError(None, None, "Collective instance 110 expected type 0 and data_type 1"),
            RuntimeError,
            "give all workers the same callbacks, such as StallWatch and AutoResume",
        ),
        (
            tf.errors.InvalidArgumentError(None, None, "expected all ranks to ask for the same operation, received"),
            RuntimeError,
            "give all workers the same callbacks, such as StallWatch and AutoResume",
        ),
        (tf.errors.InternalError(None, None, "a link was cut"), tf.errors.InternalError, "a link was cut"),
    ],
)
def test_a_worker_that_alone_opens_the_mesh_is_told_that_callbacks_differ(error, kind, says, monkeypatch):
    def exchange(*_, **__):
        raise error

    monkeypatch.setattr(mesh_of, "count_workers", lambda strategy: 2)
    monkeypatch.setattr(mesh_of, "exchange", exchange)
    with pytest.raises(kind, match=says):
        mesh_of.mesh_of(tf.distribute.OneDeviceStrategy("CPU:0"))
