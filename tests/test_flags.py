from __future__ import annotations

import re

import pytest
import tensorflow as tf
from absl import flags

from tfdist import AllReduceOptions
from tfdist.averaging import Average, ElasticAverage, Nesterov, Staleness
from tfdist.averaging.schedule import Meetings
from tfdist.flags import GROUPS, all_reduce_from_flags, define_flags, optimizer_from_flags, strategy_from_flags
from tfdist.keras_compat.optimizers.hooked import hook_of

NAMES = {
    "strategy": {
        "strategy",
        "devices",
        "all_reduce",
        "num_packs",
        "bytes_per_pack",
        "all_reduce_timeout_seconds",
        "all_reduce_transport",
        "compression",
        "backward_passes_per_step",
        "local_steps",
        "local_start_step",
        "local_average",
        "outer",
        "staleness_scale",
        "staleness_drop_above",
        "staleness_bound",
        "staleness_soft_sync",
        "tpu",
        "startup_timeout_seconds",
    },
    "training": {
        "global_batch_size",
        "epochs",
        "optimizer",
        "learning_rate",
        "momentum",
        "learning_rate_scaling",
        "base_batch_size",
        "warmup_epochs",
        "learning_rate_decay",
        "weight_decay",
        "exclude_from_weight_decay",
        "exclude_from_adaptation",
        "eeta",
        "precision",
        "sync_batch_norm",
        "seed",
        "model_dir",
    },
    "program": {
        "model",
        "data",
        "data_dir",
        "train_files",
        "eval_files",
        "image_shape",
        "num_classes",
        "steps_per_epoch",
        "stop_on_nonfinite_loss",
        "evaluator_timeout_seconds",
        "steps",
        "validation_every",
        "profile_steps",
        "resume",
        "snapshot_every_steps",
        "snapshot_every_seconds",
        "best_metric",
        "stop_patience",
        "stall_seconds",
        "stall_deadline_seconds",
    },
}


def parsed(*argv):
    values = flags.FlagValues()
    define_flags(groups=("strategy",), flag_values=values)
    values(["program", *argv])
    return values


@pytest.fixture
def asked(monkeypatch, four_cpus):
    """Replaces create_strategy by a function that only records its arguments."""
    from tfdist import strategies

    seen = []
    monkeypatch.setattr(strategies, "create_strategy", lambda name, **options: seen.append((name, options)))
    return seen


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_defines_its_flags_and_no_others(group):
    values = flags.FlagValues()
    define_flags(groups=(group,), flag_values=values)
    assert set(values) == NAMES[group]
    assert all(values[name].help for name in values)


def test_all_groups_can_be_defined_together():
    values = flags.FlagValues()
    define_flags(flag_values=values)
    assert set(values) == set.union(*NAMES.values())


def test_the_name_of_one_group_needs_no_tuple():
    values = flags.FlagValues()
    define_flags(groups="training", flag_values=values)
    assert "epochs" in values
    assert "strategy" not in values
    with pytest.raises(ValueError, match=r"among strategy, training, program, received stategy\."):
        define_flags(groups="stategy", flag_values=values)


@pytest.mark.parametrize("groups", [("stategy",), ("strategy", "data", "more")])
def test_an_unknown_group_is_refused(groups):
    unknown = ", ".join(sorted(set(groups) - set(GROUPS)))
    message = f"expected groups to be among strategy, training, program, received {unknown}."
    values = flags.FlagValues()
    with pytest.raises(ValueError, match=re.escape(message)):
        define_flags(groups=groups, flag_values=values)
    assert len(values) == 0


def test_every_name_of_create_strategy_has_a_helper_and_can_be_given_as_a_flag(four_cpus):
    from tfdist import strategies

    values = flags.FlagValues()
    define_flags(groups=("strategy",), flag_values=values)
    assert tuple(values["strategy"].parser.enum_values) == strategies.STRATEGY_NAMES
    assert all(callable(getattr(strategies, name)) for name in strategies.STRATEGY_NAMES if name != "auto")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--all_reduce=auto", "--compression=none"], None),
        (["--all_reduce=ring"], AllReduceOptions(algorithm="ring")),
        (["--all_reduce_transport=tensorflow"], AllReduceOptions(transport="tensorflow")),
        (
            ["--num_packs=2", "--bytes_per_pack=3", "--all_reduce_timeout_seconds=4"],
            AllReduceOptions(num_packs=2, bytes_per_pack=3, timeout_seconds=4.0),
        ),
    ],
)
def test_flags_become_all_reduce_options(argv, expected):
    assert all_reduce_from_flags(parsed(*argv)) == expected


@pytest.mark.parametrize(
    ("argv", "devices"),
    [
        ([], None),
        (["--devices="], None),
        (["--devices=2"], 2),
        (["--devices=CPU:0"], ["CPU:0"]),
        (["--devices=CPU:0,CPU:1"], ["CPU:0", "CPU:1"]),
        (["--devices=2,3"], ["2", "3"]),
    ],
)
def test_devices_reach_create_strategy(argv, devices, asked):
    strategy_from_flags(parsed("--strategy=mirrored", *argv))
    ((name, options),) = asked
    assert (name, options["devices"]) == ("mirrored", devices)


def test_the_other_options_reach_create_strategy(asked):
    strategy_from_flags(parsed("--strategy=tpu", "--tpu=mine", "--startup_timeout_seconds=9", "--num_packs=2"))
    all_reduce = AllReduceOptions(num_packs=2)
    assert asked == [
        (
            "tpu",
            {
                "devices": None,
                "all_reduce": all_reduce,
                "tpu": "mine",
                "staleness": None,
                "startup_timeout_seconds": 9.0,
            },
        )
    ]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], None),
        (["--staleness_scale=1/tau"], Staleness()),
        (["--staleness_scale=none"], Staleness(scale=None)),
        (["--staleness_drop_above=0", "--staleness_bound=2"], Staleness(drop_above=0, bound=2)),
        (["--staleness_soft_sync=3"], Staleness(soft_sync=3)),
    ],
)
def test_flags_of_staleness_reach_create_strategy(argv, expected, asked):
    strategy_from_flags(parsed("--strategy=parameter_server", *argv))
    ((_, options),) = asked
    assert options["staleness"] == expected


@pytest.mark.parametrize(
    ("argv", "meetings", "rule"),
    [
        (["--local_steps=4"], Meetings(every=4, start_step=0), Average()),
        (["--local_steps=8", "--outer=nesterov", "--local_start_step=2"], Meetings(every=8, start_step=2), Nesterov()),
        (["--local_steps=8", "--outer=elastic"], Meetings(every=8, start_step=0), ElasticAverage(rate=0.9)),
    ],
)
def test_flags_of_local_steps_reach_the_optimizer(argv, meetings, rule):
    hook = hook_of(optimizer_from_flags(tf.keras.optimizers.SGD(), parsed(*argv)))
    assert (hook.meetings, hook.meeting.outer) == (meetings, rule)
    assert set(hook.meeting.parts) == {"weights", "slots", "statistics"}


def test_what_is_averaged_reaches_the_optimizer():
    argv = "--local_steps=4", "--local_average=weights,statistics"
    hook = hook_of(optimizer_from_flags(tf.keras.optimizers.SGD(), parsed(*argv)))
    assert set(hook.meeting.parts) == {"weights", "statistics"}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--outer=nesterov"], "expected --local_steps with --outer, received none"),
        (["--local_start_step=3"], "expected --local_steps with --local_start_step, received none"),
        (["--local_average=weights"], "expected --local_steps with --local_average, received none"),
        (
            ["--local_steps=2", "--backward_passes_per_step=2"],
            "expected --backward_passes_per_step=1 with --local_steps, received 2",
        ),
    ],
)
def test_flags_of_local_steps_that_contradict_each_other_are_refused(argv, message):
    with pytest.raises(ValueError, match=message):
        optimizer_from_flags(tf.keras.optimizers.SGD(), parsed(*argv))


@pytest.mark.parametrize(("argv", "replicas"), [(["--devices=2"], 2), (["--devices=CPU:0,CPU:1,CPU:3"], 3), ([], 1)])
def test_the_strategy_has_the_devices_that_the_flags_name(argv, replicas, four_cpus, no_surroundings):
    assert strategy_from_flags(parsed("--strategy=mirrored", *argv)).num_replicas_in_sync == replicas


def test_0_devices_are_refused(four_cpus, no_surroundings):
    with pytest.raises(ValueError, match="expected devices to be at least 1, received 0; leave devices out to use all"):
        strategy_from_flags(parsed("--strategy=mirrored", "--devices=0"))


@pytest.mark.parametrize(
    "argument",
    [
        "--strategy=horovod",
        "--all_reduce=tree",
        "--num_packs=0",
        "--bytes_per_pack=0",
        "--all_reduce_timeout_seconds=-1",
        "--all_reduce_transport=gloo",
        "--startup_timeout_seconds=-1",
        "--local_steps=0",
        "--local_start_step=-1",
        "--local_average=slots",
        "--local_average=weights,momentum",
        "--outer=mean",
        "--staleness_scale=tau",
        "--staleness_bound=-1",
        "--staleness_soft_sync=0",
        "--compression=zip",
        "--compression=topk:2",
        "--backward_passes_per_step=0",
    ],
)
def test_values_out_of_range_are_refused(argument):
    with pytest.raises(flags.IllegalFlagValueError, match=re.escape(argument.partition("=")[0])):
        parsed(argument)
