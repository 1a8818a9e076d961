"""Starts many sums before it asks for the first result: python many_results.py. Prints how many results are right."""

from __future__ import annotations

import time

import tensorflow as tf

from tests.native.done_callback_program import ALL_REDUCE, connected
from tfdist.allreduce.native.library import operations

SUMS = 5000


def main() -> None:
    communicators, token = connected(), tf.Variable(0)
    given = {"token": token.handle, "kind": ALL_REDUCE, "group": 1, "ranks": 2}
    started = []
    for number in range(SUMS):
        value = tf.constant(float(number))
        started += [
            (number, operations().tfdist_start(value=value, key=number, communicator=one.number, **given))
            for one in communicators
        ]
        if number == 1:
            # The first results are complete when the last sums start.
            time.sleep(1)
    right = 0
    for number, operation in started:
        try:
            right += float(operations().tfdist_wait(operation=operation, T=tf.float32)) == 2 * number
        except tf.errors.InvalidArgumentError as error:
            print(error.message, flush=True)
            break
    print("RIGHT", right, flush=True)


if __name__ == "__main__":
    main()
