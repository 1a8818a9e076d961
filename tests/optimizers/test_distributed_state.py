"""The state of a compression: residuals of every replica, through checkpoints and steps that are not finite."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optimizers.replicas import ELEMENTS, on_two_replicas

RESUME = """
folder = sys.argv[3]
# Each worker writes a checkpoint, as TensorFlow asks for; the values are those of all replicas.
rank = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
for compression in ("topk:0.05", "powersgd:2"):
    with strategy.scope():
        model = make(compression)
        model.fit(data(), epochs=2, verbose=0)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        own = os.path.join(folder, f"{compression.replace(':', '-')}-{rank}")
        path = checkpoint.save(own)
        model.fit(data(), epochs=2, verbose=0)
        whole = weights(model)
        other = make(compression)
        checkpoint = tf.train.Checkpoint(model=other, optimizer=other.optimizer)
        if compression.startswith("topk"):
            # Restored before there is anything to restore to.
            status = checkpoint.restore(path)
            other.fit(data(), epochs=2, verbose=0)
        else:
            other.fit(data(), epochs=1, verbose=0)
            checkpoint.restore(path).assert_consumed()
            other.fit(data(), epochs=2, verbose=0)
        say(compression, [whole, weights(other)])
        residuals = model.optimizer._tfdist_hook.path.residuals()
        say(compression + " residual", residuals[0].values().numpy().tolist())
"""

SPOILT = """
def kept(hook):
    return {place: residual.values().numpy().tolist() for place, residual in hook.path.residuals().items()}

with strategy.scope():
    model = make("topk:0.05")
    model.fit(data(), epochs=1, verbose=0)
    hook = model.optimizer._tfdist_hook
    before = kept(hook)

    @tf.function
    def step(scale):
        def replica():
            context = tf.distribute.get_replica_context()
            second = tf.cast(context.replica_id_in_sync_group, tf.float32)
            # Infinite on the second replica alone, in a place that top-k would not choose first.
            gradients = [tf.ones(v.shape) + tf.where(second > 0, scale, 0.0) for v in model.trainable_variables]
            return hook.path.sum_gradients(gradients)
        return strategy.run(replica)

    sums = step(np.float32(np.inf))
    after = kept(hook)
    finite = bool(np.isfinite(sum(float(tf.reduce_sum(strategy.experimental_local_results(s)[0])) for s in sums)))
    say("spoilt", [finite, before == after])
    step(np.float32(1.0))
    say("fine", kept(hook) != after)
    traffic = gradient_traffic(model.optimizer)
    say("traffic", [traffic.steps, traffic.sent, traffic.uncompressed])
"""

CHANGED = """
with strategy.scope():
    model = make("topk:0.1")
    model.fit(data(), verbose=0)
    own = os.path.join(folder, f"changed-{rank}")
    saved = tf.train.Checkpoint(optimizer=model.optimizer).save(own)
    for compression in ("powersgd:2", "powersgd:1", "none"):
        other = make(compression)
        tf.train.Checkpoint(optimizer=other.optimizer).restore(saved)
        other.fit(data(), verbose=0)
        saved = tf.train.Checkpoint(optimizer=other.optimizer).save(own)
        say("changed to " + compression, gradient_traffic(other.optimizer).steps)
"""

PROGRAM = RESUME + SPOILT + CHANGED


@pytest.fixture(scope="module", params=[pytest.param(1, marks=pytest.mark.full), 2], ids=["mirrored", "workers"])
def each(request, module_children, tmp_path_factory):
    """What each process said, on two replicas of one process and on two workers."""
    return on_two_replicas(module_children, PROGRAM, tmp_path_factory.mktemp("each"), workers=request.param)


def test_residuals_of_every_replica_survive_a_checkpoint(each):
    for said in each:
        for compression in ("topk:0.05", "powersgd:2"):
            whole, resumed = said[compression]
            assert whole == resumed
            one, other = said[f"{compression} residual"]
            assert np.any(one)
            assert one != other


def test_a_step_that_is_not_finite_leaves_residuals_alone(each):
    for said in each:
        assert said["spoilt"] == [False, True]
        assert said["fine"]
        steps, sent, uncompressed = said["traffic"]
        # The step that was not finite was sent as well.
        assert steps == 6
        # Each of two replicas sends its bytes once. 129 elements are in tensors that are too small to compress.
        kept = sum(int(np.ceil(0.05 * size)) for size in (40 * 64, 64 * 32))
        assert sent == steps * (4 * 129 + 8 * (kept + 1))
        assert uncompressed == steps * 4 * ELEMENTS


def test_residuals_go_on_under_another_compression(each):
    for said in each:
        # Four steps of each compression; without one nothing is counted.
        assert [said[f"changed to {one}"] for one in ("powersgd:2", "powersgd:1", "none")] == [8, 12, 0]
