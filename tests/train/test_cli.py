from __future__ import annotations

import re
import signal
import subprocess
import sys

import pytest
from absl import flags

from tfdist.cluster.exit_codes import RESTART_CODE
from tfdist.flags import define_flags
from tfdist.train import before_training, cli, program

TFRECORD = ["--data=tfrecord", "--train_files=t", "--eval_files=e", "--image_shape=8,8,1", "--num_classes=3"]


@pytest.fixture
def ran(monkeypatch):
    """Replaces the program by a function that only records its flags."""
    seen = []
    monkeypatch.setattr(program, "run", lambda values, *, started: seen.append(values) or 7)
    return seen


def without(name):
    return [argument for argument in TFRECORD if not argument.startswith(f"--{name}=")]


def refused(argv, message, capsys):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith(f"tfdist train: {message}")


@pytest.mark.parametrize("argv", [[], TFRECORD, ["--data=synthetic", "--image_shape=2,2,1", "--num_classes=2"]])
def test_flags_that_fit_together_reach_the_program(argv, ran):
    assert cli.main(argv) == 7
    assert len(ran) == 1


def test_flags_that_are_not_given_have_their_defaults(ran):
    cli.main([])
    values = ran[0]
    assert (values.model, values.data, values.strategy, values.all_reduce) == ("cnn", "digits", "auto", "auto")
    assert (values.global_batch_size, values.epochs, values.optimizer) == (64, 20, "adam")


def test_a_flagfile_is_read(ran, tmp_path):
    file = tmp_path / "flags.txt"
    file.write_text("--epochs=3\n# a comment\n--model=mlp\n")
    assert cli.main([f"--flagfile={file}", "--seed=5"]) == 7
    assert (ran[0].epochs, ran[0].model, ran[0].seed) == (3, "mlp", 5)


def test_a_mistake_in_a_flagfile_is_refused(ran, tmp_path, capsys):
    file = tmp_path / "flags.txt"
    file.write_text("--epochs=none\n")
    refused([f"--flagfile={file}"], "flag --epochs=none: ", capsys)
    assert ran == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--epochs=0"], "flag --epochs=0: "),
        (["--strategy=horovod"], "flag --strategy=horovod: "),
        (["--no_such_flag=1"], "Unknown command line flag 'no_such_flag'"),
        (["--flagfile=/nowhere/flags.txt"], "ERROR:: Unable to open flagfile"),
        (["digits", "cnn"], "expected flags only, received digits cnn; write --flag=value."),
        (
            ["--image_shape=8,8,1"],
            "expected no --image_shape with --data=digits, received ['8', '8', '1']; leave it out.",
        ),
        (["--num_classes=3"], "expected no --num_classes with --data=digits, received 3; leave it out."),
        (
            ["--data=synthetic", "--image_shape=8,8,1", "--num_classes=3", "--train_files=t"],
            "expected no --train_files with --data=synthetic, received t; leave it out.",
        ),
        (
            ["--data=synthetic", "--num_classes=3"],
            "expected --image_shape with --data=synthetic, received none; add it.",
        ),
        *(
            (without(name), f"expected --{name} with --data=tfrecord, received none; add it.")
            for name in ("train_files", "eval_files", "image_shape", "num_classes")
        ),
        *(
            (
                [*without("image_shape"), f"--image_shape={shape}"],
                f"expected --image_shape as height,width,channels, received {shape}; write it as 28,28,1.",
            )
            for shape in ("8", "8,8", "8,8,1,1", "8,x,1", "8,-8,1")
        ),
    ],
)
def test_mistakes_are_refused_before_the_program_runs(argv, message, ran, capsys):
    refused(argv, message, capsys)
    assert ran == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps=100", "--epochs=3"], "expected --epochs or --steps, received 3 and 100; leave one out."),
        (["--steps=0"], "flag --steps=0: "),
        (["--validation_every=0"], "flag --validation_every=0: "),
        (["--stop_patience=0"], "flag --stop_patience=0: "),
        (["--resume=always"], "flag --resume=always: "),
        (["--stall_seconds=-1"], "flag --stall_seconds=-1: "),
        (
            ["--stall_seconds=0", "--stall_deadline_seconds=5"],
            "expected no --stall_deadline_seconds with --stall_seconds=0, received 5.0; leave it out.",
        ),
        (["--snapshot_every_seconds=0"], "expected --snapshot_every_seconds above 0, received 0.0."),
        (
            ["--snapshot_every_seconds=1", "--snapshot_every_steps=5"],
            "expected --snapshot_every_steps or --snapshot_every_seconds, received 5 and 1.0; leave one out.",
        ),
        *(
            ([f"--profile_steps={text}"], "expected --profile_steps as the first and the last step, such as 10:20, r")
            for text in ("10", "20:10", "0:3", "a:b", "-1:3", "1:2:3")
        ),
    ],
)
def test_a_length_or_a_snapshot_that_has_no_meaning_is_refused(argv, message, ran, capsys):
    refused(argv, message, capsys)
    assert ran == []


def test_a_warmup_is_compared_with_the_epochs_only_if_they_are_the_length(ran):
    assert cli.main(["--steps=10000", "--warmup_epochs=21"]) == 7


def test_an_interrupted_training_ends_with_its_own_exit_code(monkeypatch):
    def leave(values, *, started):
        raise SystemExit(RESTART_CODE)

    monkeypatch.setattr(program, "run", leave)
    with pytest.raises(SystemExit) as ended:
        cli.main([])
    assert ended.value.code == 75


@pytest.mark.parametrize("flag", ["-h", "--help", "-help", "--helpfull"])
def test_help_lists_every_flag(flag, ran, capsys):
    assert cli.main([flag]) == 0
    printed = capsys.readouterr().out
    values = flags.FlagValues()
    define_flags(flag_values=values)
    for name in values:
        assert re.search(rf"^  --{name}: {re.escape(values[name].help)}", printed, re.MULTILINE)
    assert "--epochs: Number of passes over the training data. (default: 20)" in printed
    assert "--num_packs: Number of packs, within one process.\n" in printed
    assert ran == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--optimizer=adam", "--momentum=0.5"],
            "expected no --momentum with --optimizer=adam, received 0.5; leave it out, or use sgd, momentum_corrected_"
            "sgd or lars.",
        ),
        (
            ["--optimizer=rmsprop", "--weight_decay=0.1"],
            "expected no --weight_decay with --optimizer=rmsprop, received 0.1; leave it out, or use sgd,",
        ),
        (
            ["--optimizer=sgd", "--eeta=0.02"],
            "expected no --eeta with --optimizer=sgd, received 0.02; leave it out, or use lars.",
        ),
        (
            ["--optimizer=sgd", "--exclude_from_adaptation=bias"],
            "expected no --exclude_from_adaptation with --optimizer=sgd, received ['bias']; leave it out, or use lars",
        ),
        (
            ["--optimizer=sgd", "--exclude_from_weight_decay=bias"],
            "expected no --exclude_from_weight_decay with --optimizer=sgd, received ['bias']; leave it out, or use",
        ),
        (["--warmup_epochs=21"], "expected --warmup_epochs up to --epochs=20, received 21.0."),
        (["--optimizer=sgd", "--momentum=1"], "expected --momentum below 1, received 1.0."),
        (
            ["--base_batch_size=32"],
            "expected no --base_batch_size with --learning_rate_scaling=none, received 32; add --learning_rate_scal",
        ),
        (
            [
                "--data=tfrecord",
                "--train_files=a",
                "--eval_files=b",
                "--image_shape=8,8,1",
                "--num_classes=2",
                "--data_dir=/data",
            ],
            "expected no --data_dir with --data=tfrecord, received /data; write the folder",
        ),
    ],
)
def test_a_flag_that_would_be_ignored_is_refused(argv, message, capsys):
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "adaptation", "eeta"),
    [
        ([], None, 0.001),
        (["--eeta=0.02", "--exclude_from_adaptation=beta,gamma"], ("beta", "gamma"), 0.02),
        (["--exclude_from_adaptation="], (), 0.001),
    ],
)
def test_flags_of_an_optimizer_reach_the_optimizer(argv, adaptation, eeta, ran):
    cli.main(["--optimizer=lars", "--exclude_from_weight_decay=bias", *argv])
    found = program._optimizer(ran[0], steps=10)
    assert found.get_config()["exclude_from_weight_decay"] == ["bias"]
    assert (found.exclude_from_adaptation, found.eeta) == (adaptation, eeta)


class TestErrorsOfTheProgram:
    def test_a_refusal_is_printed_as_a_sentence(self, monkeypatch, capsys):
        def refuse(values, *, started):
            raise ValueError("expected a batch, received none.")

        monkeypatch.setattr(program, "run", refuse)
        refused([], "expected a batch, received none.\n", capsys)

    def test_another_error_keeps_its_traceback(self, monkeypatch):
        def fail(values, *, started):
            raise ValueError("Shapes (2,) and (3,) are incompatible")

        monkeypatch.setattr(program, "run", fail)
        with pytest.raises(ValueError, match=r"^Shapes"):
            cli.main([])

    def test_a_pattern_that_matches_no_variable_is_refused_before_the_training(self, tmp_path):
        argv = ["train", "--strategy=one_device", "--optimizer=lamb", "--exclude_from_weight_decay=no_such_layer"]
        argv += [f"--model_dir={tmp_path / 'model'}", f"--data_dir={tmp_path / 'data'}"]
        ended = subprocess.run([sys.executable, "-m", "tfdist", *argv], capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2
        message = "tfdist train: expected 'no_such_layer' of exclude_from_weight_decay to match the path of a variable"
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("end", "code"), [("", RESTART_CODE), ("before_training.end()", -signal.SIGTERM)])
def test_sigterm_while_tensorflow_is_imported_asks_for_a_restart(end, code):
    program = f"""
import os, signal
from tfdist.train import before_training
before_training.leave_on_sigterm()
{end}
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == code
    assert ("received SIGTERM before the training has begun; exit code 75" in done.stderr) == (code == RESTART_CODE)


def test_sigterm_has_its_default_action_after_the_program(ran, monkeypatch):
    seen = []
    monkeypatch.setattr(program, "run", lambda values, *, started: seen.append(signal.getsignal(signal.SIGTERM)) or 0)
    # A training in this process may have left a handler.
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert cli.main([]) == 0
        assert seen[0] is before_training._leave
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, former)
