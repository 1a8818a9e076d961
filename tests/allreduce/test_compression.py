"""Compressions: the values that they send, compared with numpy, on two replicas of one process and on two workers."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from tests.processes import WARM_LAUNCH
from tfdist.allreduce import BF16, FP16, AllReduceOptions, ErrorFeedback, PowerSGD, Threshold, TopK
from tfdist.allreduce.compression import COMPRESSIONS, compression_from_name

SHAPES = [(40, 30), (1500,), (3, 4, 5, 30)]
NAMES = ["fp16", "bf16", "topk", "topk warmup", "threshold", "threshold, quiet", "powersgd"]

SPOILT = ["early", "late", "everywhere", "infinite"]

# For each compression a few steps of error feedback, whose values each process prints, and a step for each way in which
# a gradient of the second replica is spoilt.
PROGRAM = """
import json, sys
import numpy as np
import tfdist

name, devices, runs = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
strategy = tfdist.create_strategy(name, devices=devices) if devices else tfdist.create_strategy(name)
import tensorflow as tf
from tfdist.allreduce import BF16, FP16, CompressionState, ErrorFeedback, PowerSGD, Streams, Threshold, TopK

COMPRESSIONS = {
    "fp16": FP16(), "bf16": BF16(), "topk": TopK(0.02), "topk warmup": TopK(0.01, warmup_steps=3),
    "threshold": Threshold(1.5), "threshold, quiet": Threshold(1e6), "powersgd": PowerSGD(3),
}
SHAPES = [(40, 30), (1500,), (3, 4, 5, 30)]
replicas = 2

def of_each(make):
    return strategy.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group))

for key, inner in COMPRESSIONS.items():
    compression = ErrorFeedback(inner)
    shapes = [shape for shape in SHAPES if compression.takes(shape)]
    first = compression.initial_state(shapes)
    parts = (first.of_gradients, first.shared, first.residuals)

    @tf.function
    def step(gradients, state):
        of_gradients, shared, residuals = state
        state = CompressionState(of_gradients=of_gradients, shared=shared, residuals=residuals)
        found = compression.exchange(gradients, state, Streams())
        after = (found.state.of_gradients, found.state.shared, found.state.residuals)
        return found.totals, found.residuals, after

    def gradient(number, i, position, spoilt):
        values = np.random.default_rng([number, i, position]).normal(size=shapes[position]).astype("float32")
        if spoilt and i == 1 and position == 0:
            place = {"early": 7, "late": -1, "everywhere": slice(None), "infinite": 7}[spoilt]
            values.flat[place] = 1e30 if key == "fp16" else np.inf if spoilt == "infinite" else np.nan
        return tf.constant(values)

    def lists(values):
        local = strategy.experimental_local_results
        return [[np.asarray(one, "float64").ravel().tolist() for one in local(value)] for value in values]

    for spoilt in runs:
        state = tf.nest.map_structure(lambda value: of_each(lambda i: tf.constant(value)), parts)
        for number in range(1 if spoilt else 5):
            gradients = [
                of_each(lambda i: gradient(number, i, position, spoilt)) for position in range(len(shapes))]
            residuals = state[2]
            totals, left, state = strategy.run(step, args=(gradients, state))
            if spoilt:
                finite = bool(np.isfinite(sum(map(np.sum, lists(totals)))))
                found = {"key": key, "spoilt": spoilt, "finite": finite}
            else:
                found = {"key": key, "spoilt": "", "step": number, "gradients": lists(gradients),
                    "before": lists(residuals), "totals": lists(totals), "left": lists(left)}
            print("RESULT", json.dumps(found), flush=True)
"""


def results(text):
    return [json.loads(line.partition("RESULT ")[2]) for line in text.splitlines() if "RESULT " in line]


@pytest.fixture(scope="module")
def found(module_children):
    finished = module_children.run(PROGRAM, "mirrored", "2", ",".join(["", *SPOILT]))
    assert finished.code == 0, finished.err
    return results(finished.out)


@pytest.fixture(scope="module")
def steps(found):
    """The steps of each compression, none of them spoilt."""
    steps = {name: [one for one in found if one["key"] == name and not one["spoilt"]] for name in NAMES}
    assert all(len(each) == 5 for each in steps.values())
    return steps


def arrays(step, key):
    """Returns flat float32 arrays: a list of gradients, each a list of replicas."""
    return [[np.array(one, np.float32) for one in replicas] for replicas in step[key]]


@pytest.mark.parametrize("name", NAMES)
def test_sent_and_left_are_the_gradient_and_the_old_residual(name, steps):
    for step in steps[name]:
        everything = zip(*(arrays(step, key) for key in ("gradients", "before", "left", "totals")), strict=True)
        for gradients, before, left, totals in everything:
            together = [gradient + old for gradient, old in zip(gradients, before, strict=True)]
            # The values sent, worked out in float64, which has more digits than they need.
            sent = [np.float64(one) - np.float64(rest) for one, rest in zip(together, left, strict=True)]
            if name != "powersgd":
                # Exactly: the values sent are numbers of float32, so that nothing was rounded.
                assert all(np.array_equal(np.float32(one), one) for one in sent)
            size = np.abs(totals[0]).max()
            rounding = {"fp16": 2e-3, "bf16": 2e-2}.get(name, 1e-5)
            assert np.abs(sum(sent) - totals[0]).max() <= rounding * size
            assert np.array_equal(totals[0], totals[1])


def test_topk_sends_the_largest(steps):
    for step in steps["topk"]:
        everything = zip(*(arrays(step, key) for key in ("gradients", "before", "left")), strict=True)
        for gradients, before, left in everything:
            for gradient, old, rest in zip(gradients, before, left, strict=True):
                together = gradient + old
                sent = np.flatnonzero(together != rest)
                assert len(sent) == int(np.ceil(0.02 * together.size))
                assert set(sent) == set(np.argsort(-np.abs(together))[: len(sent)])
                assert not rest[sent].any()


def test_topk_warms_up(steps):
    for number, step in enumerate(steps["topk warmup"]):
        density = 0.25 * (0.01 / 0.25) ** min(number / 3, 1)
        for together, left in zip(
            (g[0] + b[0] for g, b in zip(arrays(step, "gradients"), arrays(step, "before"), strict=True)),
            (one[0] for one in arrays(step, "left")),
            strict=True,
        ):
            assert abs((together != left).sum() - density * together.size) <= 1.01


def test_threshold_sends_plus_or_minus_tau(steps):
    for step in steps["threshold"]:
        everything = zip(*(arrays(step, key) for key in ("gradients", "before", "left")), strict=True)
        for gradients, before, left in everything:
            for gradient, old, rest in zip(gradients, before, left, strict=True):
                together = gradient + old
                expected = np.where(np.abs(together) >= 1.5, 1.5 * np.sign(together), 0)
                assert np.array_equal(np.float32(together - rest), expected.astype(np.float32))


def test_gradients_below_the_threshold_send_nothing_and_are_kept(steps):
    for number, step in enumerate(steps["threshold, quiet"]):
        assert not any(np.any(total) for totals in arrays(step, "totals") for total in totals)
        assert number == 0 or np.any(arrays(step, "before")[0][0])


def test_powersgd_is_the_power_iteration_of_the_paper(steps):
    rng = np.random.default_rng(0)
    shapes = [shape for shape in SHAPES if PowerSGD(3).takes(shape)]
    matrices = [(int(np.prod(shape[:-1])), shape[-1]) for shape in shapes]
    factors = [rng.normal(size=(columns, 3)) for _, columns in matrices]
    assert len(matrices) == 2
    for step in steps["powersgd"]:
        for i, shape in enumerate(matrices):
            together = [
                np.float64(g + b).reshape(shape)
                for g, b in zip(arrays(step, "gradients")[i], arrays(step, "before")[i], strict=True)
            ]
            basis = np.linalg.qr(sum(together) @ factors[i])[0]
            factors[i] = sum(together).T @ basis
            expected = basis @ factors[i].T
            total = arrays(step, "totals")[i][0].reshape(shape)
            assert np.abs(total - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("spoilt", SPOILT)
def test_what_is_not_finite_on_one_replica_is_not_finite_in_the_totals(spoilt, found):
    steps = [one for one in found if one["spoilt"] == spoilt]
    assert [one["key"] for one in steps] == NAMES
    assert not any(one["finite"] for one in steps)


# Other tests compress on two workers: test_path.py, and those of late meetings, checkpoints and tfdist.train.
@pytest.mark.full
def test_two_workers_send_what_two_replicas_send_and_repeat_it(steps, children, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    for number in range(2):
        logs = tmp_path / f"logs{number}"
        command = [*WARM_LAUNCH, "--workers", "2", "--timeout-seconds", "280", "--log-dir", str(logs)]
        finished = children.start_command(
            *command, str(tmp_path / "program.py"), "multi_worker_mirrored", "0", ""
        ).end()
        assert finished.code == 0, finished.err
        ranks = [results(path.read_text()) for path in sorted(logs.glob("*worker*"))]
        assert len(ranks) == 2
        flat = [one for name in NAMES for one in steps[name]]
        for replica, rank in enumerate(ranks):
            for one, other in zip(rank, flat, strict=True):
                for key in ("gradients", "totals", "left"):
                    # Bit for bit: the sum of two numbers does not depend on their order.
                    assert [values[0] for values in one[key]] == [values[replica] for values in other[key]], key


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("fp16", FP16()),
        ("bf16", BF16()),
        ("topk", ErrorFeedback(TopK())),
        ("topk:0.001", ErrorFeedback(TopK(0.001))),
        ("threshold:0.25", ErrorFeedback(Threshold(0.25))),
        ("powersgd:2", ErrorFeedback(PowerSGD(2))),
    ],
)
def test_compressions_have_names(text, value):
    assert compression_from_name(text) == value
    assert AllReduceOptions(compression=text) == AllReduceOptions(compression=value)


def test_none_names_no_compression_and_is_not_silence():
    assert compression_from_name("none") is None
    # The option "none" of an optimizer overrules the compression of its strategy; None does not.
    assert AllReduceOptions(compression="none").compression == "none"
    assert AllReduceOptions(compression="none") != AllReduceOptions()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compression_from_name("zip"), f"to be one of {', '.join(COMPRESSIONS)}, received 'zip'"),
        (lambda: compression_from_name("fp16:2"), "received 'fp16:2'"),
        (lambda: compression_from_name("powersgd:1.5"), "expected a whole number after the colon"),
        (lambda: AllReduceOptions(compression=3), "or a value of tfdist.allreduce, received 3"),
        (lambda: TopK(0.0), "expected a density of topk above 0 and at most 0.25, received 0.0"),
        (lambda: TopK(0.3), "received 0.3"),
        (lambda: TopK(0.1, warmup_steps=-1), "expected warmup_steps of topk to be a whole number"),
        (lambda: Threshold(0.0), "expected tau of threshold to be a positive number, received 0.0"),
        (lambda: Threshold(float("nan")), "received nan"),
        (lambda: PowerSGD(0), "expected rank of powersgd to be a whole number, at least 1, received 0"),
        (lambda: ErrorFeedback(ErrorFeedback(TopK())), "expected a compression without error feedback"),
    ],
)
def test_options_that_mean_nothing_are_refused(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(("size", "count"), [(5000, 3), (4999, 400), (1000, 250), (1024, 1)])
def test_the_search_finds_the_largest(size, count):
    import tensorflow as tf

    from tfdist.allreduce.compression.topk import largest

    values = np.random.default_rng(size).normal(size=size).astype("float32")
    for number in (count, tf.constant(count)):
        found = largest(tf.constant(values), number).numpy()
        assert len(found) == count
        assert set(found) == set(np.argsort(-np.abs(values))[:count])
    zeros = largest(tf.zeros([size]), count).numpy()
    assert len(set(zeros)) == count
