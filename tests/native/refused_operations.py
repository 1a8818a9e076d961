"""Operations that cannot be started fail, and the process lives on: python refused_operations.py. Prints the errors."""

from __future__ import annotations

import resource
from pathlib import Path

import tensorflow as tf

from tests.native.done_callback_program import ALL_REDUCE, connected
from tfdist.allreduce.native.library import operations

ALL_GATHER, BROADCAST, SEND, RECEIVE = 3, 4, 5, 6
MEGABYTES = 800


def attempt(name: str, value: tf.Tensor, number: int, token: tf.Variable, **options: int) -> None:
    given = {"key": 1, "token": token.handle, "communicator": number, "group": 1, "ranks": 2, **options}
    try:
        operations().tfdist_start(value=value, **given)
        print(f"{name}: started", flush=True)
    except tf.errors.OpError as error:
        print(f"{name}: {type(error).__name__}: {error.message}", flush=True)


def main() -> None:
    communicator, token = connected()[0].number, tf.Variable(0)
    attempt("scalar", tf.constant(1.0), communicator, token, kind=ALL_GATHER)
    attempt("ranks", tf.ones([3]), communicator, token, kind=ALL_GATHER, ranks=1)
    attempt("peer below", tf.ones([3]), communicator, token, kind=BROADCAST, peer=-1)
    attempt("peer above", tf.ones([3]), communicator, token, kind=BROADCAST, peer=2)
    attempt("kind", tf.ones([3]), communicator, token, kind=9)
    attempt("send", tf.ones([3]), communicator, token, kind=SEND, peer=0)
    attempt("receive", tf.ones([3]), communicator, token, kind=RECEIVE, peer=0)
    large = tf.ones([MEGABYTES * 250_000])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEGABYTES * 500_000, resource.RLIM_INFINITY))
    attempt("memory", large, communicator, token, kind=ALL_REDUCE)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    attempt("after", tf.ones([3]), communicator, token, kind=ALL_REDUCE)


if __name__ == "__main__":
    main()
