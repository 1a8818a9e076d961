"""The package and its command start quickly, because TensorFlow is imported only when it is needed."""

from __future__ import annotations

import importlib
import json
import re

import pytest

import tfdist
from tfdist import _cli

# Runs a module as `python -m` does, and then prints its exit code and the large packages that it has imported.
RUN = """
import json, runpy, sys

code, sys.argv = 0, sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    code = end.code
print()
print(json.dumps([code, sorted({"tensorflow", "keras", "tf_keras", "numpy"} & set(sys.modules))]))
"""


def run_module(children, *argv):
    finished = children.run(RUN, *argv, cold=True)
    *printed, last = finished.out.splitlines()
    code, heavy = json.loads(last)
    return code, heavy, "\n".join(printed)


def test_importing_the_package_imports_no_large_package(children):
    program = """
    import sys, tfdist, tfdist.flags, tfdist.launch, tfdist.cluster, tfdist.cluster.tpu, tfdist.train.cli
    dir(tfdist), tfdist.AllReduceOptions(), tfdist.__version__
    print({"tensorflow", "keras", "tf_keras", "numpy"} & set(sys.modules))
    """
    assert children.run(program, cold=True).out == "set()\n"


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["tfdist", "--version"], f"tfdist {tfdist.__version__}"),
        (["tfdist", "-V"], f"tfdist {tfdist.__version__}"),
        (["tfdist", "--help"], "usage: tfdist [--version] [--help] COMMAND ..."),
        (["tfdist", "launch", "--help"], "--workers"),
        (["tfdist", "bench", "--help"], "  allreduce "),
        (["tfdist", "train", "--help"], "--global_batch_size: "),
        (["tfdist.train", "--help"], "--global_batch_size: "),
    ],
)
def test_the_command_answers_without_tensorflow(argv, says, children):
    code, heavy, printed = run_module(children, *argv)
    assert (code, heavy) == (0, [])
    assert says in printed


@pytest.mark.parametrize("argv", [["--epochs=0"], ["--num_classes=3"]])
def test_a_mistaken_flag_is_refused_without_tensorflow(argv, children):
    code, heavy, _ = run_module(children, "tfdist", "train", *argv)
    assert (code, heavy) == (2, [])


@pytest.mark.parametrize("argument", ["--help", "-h", "help"])
def test_help_lists_the_commands(argument, capsys):
    assert _cli.main([argument]) == 0
    printed = capsys.readouterr().out
    for command, text in _cli.COMMANDS.items():
        example = re.escape(_cli.EXAMPLES[command])
        assert re.search(rf"^  {command} +{re.escape(text)}\n +{example}$", printed, re.MULTILINE)


def test_help_names_every_benchmark():
    named = re.findall(r"\((\w+)\)", _cli.COMMANDS["bench"])
    assert set(named) == set(importlib.import_module("tfdist.bench").BENCHMARKS)


def test_without_a_command_the_help_is_printed_and_the_exit_code_is_2(capsys):
    assert _cli.main([]) == 2
    assert capsys.readouterr().out == _cli.usage() + "\n"


def test_an_unknown_command_is_refused(capsys):
    assert _cli.main(["lunch", "--workers=2"]) == 2
    assert capsys.readouterr().err == (
        "tfdist: expected one of the commands launch, render, doctor, test, env, verify, train, bench, completion, "
        "received 'lunch'; did you mean launch? run `tfdist --help`.\n"
    )


@pytest.mark.parametrize(
    ("argv", "suggestion"),
    [
        (["launch", "--wokers", "2", "train.py"], "unrecognized arguments: --wokers; did you mean --workers?"),
        (["launch", "--log-dri=logs", "train.py"], "unrecognized arguments: --log-dri=logs; did you mean --log-dir?"),
        (["doctor", "--drectory", "x"], "unrecognized arguments: --drectory x; did you mean --directory?"),
        (["verify", "--repilcas", "2"], "unrecognized arguments: --repilcas 2; did you mean --replicas?"),
        (["bench", "optimzer"], "received 'optimzer'; did you mean optimizer? `tfdist bench --help` lists them."),
        (["bench", "optimizer", "--modle", "small"], "unrecognized arguments: --modle small; did you mean --model?"),
        (["bench", "input", "--run", "--runz=2"], "argument --runs: expected one argument"),
        (["bench", "allreduce", "--metod", "none"], "unrecognized arguments: --metod none; did you mean --method?"),
        (["train", "--epoch=3"], "Unknown command line flag 'epoch'. Did you mean: epochs ?"),
        (["train", "--global_batchsize=3"], "Did you mean: global_batch_size ?"),
        (["completion", "bsh"], "invalid choice: 'bsh'"),
        (["launch", "--qqq", "train.py"], "unrecognized arguments: --qqq\n"),
    ],
)
def test_a_misspelt_word_is_refused_with_a_suggestion(argv, suggestion, capsys):
    try:
        code = _cli.main(argv)
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert suggestion in capsys.readouterr().err


def test_the_arguments_after_the_command_are_passed_to_it(monkeypatch):
    train = importlib.import_module("tfdist.train")
    monkeypatch.setattr(train, "main", lambda argv: argv == ["--version", "x"] and 5)
    assert _cli.main(["train", "--version", "x"]) == 5
    monkeypatch.setattr(train, "main", lambda argv: None)
    monkeypatch.setattr(_cli.sys, "argv", ["tfdist", "train"])
    assert _cli.main() == 0


def test_sub_packages_and_names_are_imported_when_they_are_used(four_cpus):
    for name in tfdist.__all__:
        assert getattr(tfdist, name) is not None
    assert tfdist.create_strategy is tfdist.strategies.create_strategy
    assert tfdist.AllReduceOptions is tfdist.allreduce.AllReduceOptions


def test_everything_public_is_listed():
    assert set(tfdist.__all__) <= set(dir(tfdist))
    assert dir(tfdist) == sorted(dir(tfdist))


def test_an_unknown_attribute_is_an_error():
    with pytest.raises(AttributeError, match="module 'tfdist' has no attribute 'create_stategy'"):
        _ = tfdist.create_stategy
