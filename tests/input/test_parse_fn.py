"""parse_fn may return whatever Dataset.map accepts; its errors are reported where distribute_files is called."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from tests.input.pipelines import Pipelines, contexts, flat, number, values
from tfdist import create_strategy
from tfdist.input import InputState, distribute_files


@pytest.mark.parametrize("rows", [4, 80])
def test_sparse_ragged_and_plain_values_are_batched_as_by_tf_data(rows, write):
    def parse(record):
        value = number(record)
        return {
            "sparse": tf.sparse.from_dense(tf.one_hot(value % 5, 5)),
            "ragged": tf.ragged.range([value % 3, 2]),
            "list": [value, 2 * value],
            "constant": 7,
            "text": record,
        }

    def batches_of_tf_data(names):
        return tf.data.TFRecordDataset(names).map(parse).batch(rows)

    files = write(90)
    options = {"parse_fn": parse, "global_batch_size": rows, "state": InputState(canonical_shards=1)}
    dataset = distribute_files(create_strategy("one_device"), files, training=False, **options)
    for ours, expected in itertools.zip_longest(dataset, batches_of_tf_data(files)):
        assert ours.keys() == expected.keys()
        for batch in (ours, expected):
            batch["sparse"], batch["ragged"] = tf.sparse.to_dense(batch["sparse"]), batch["ragged"].to_tensor()
        for name in expected:
            assert ours[name].dtype == expected[name].dtype
            assert ours[name].numpy().tolist() == expected[name].numpy().tolist()


def test_random_augmentation_differs_between_records_and_epochs(write):
    dataset = distribute_files(
        create_strategy("one_device"), write(40), parse_fn=lambda _: tf.random.uniform([]), global_batch_size=40
    )
    drawn = flat(values(itertools.islice(dataset, 2)))
    assert len(set(drawn)) == 80


def test_shapes_that_parse_fn_does_not_fix_are_those_of_the_first_record(write):
    (context,) = contexts(1, 1)
    dataset_fn = distribute_files(
        Pipelines(1),
        write(8),
        parse_fn=lambda record: tf.io.decode_raw(tf.strings.substr(record, 0, 1), tf.uint8),
        global_batch_size=4,
        drop_remainder=True,
    )
    assert dataset_fn(context).element_spec.shape.as_list() == [4, 1]


def test_a_value_without_a_static_rank_must_keep_its_shape(write):
    """TensorFlow does not know the shape or the rank of a value that py_function returns."""

    def parse(record):
        size = tf.cast(number(record) % 2 + 1, tf.int32)
        return tf.py_function(lambda n: tf.zeros([n]), [size], tf.float32)

    dataset = distribute_files(
        create_strategy("one_device"), write(9), parse_fn=parse, global_batch_size=4, training=False
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected parse_fn to return the shape \[1\] for every"):
        list(dataset)


def test_a_parse_fn_that_fails_on_the_first_record_is_refused(write):
    files = write(9)

    def wrong(record):
        return tf.io.parse_tensor(record, tf.float32)

    message = rf"^expected parse_fn to parse the first record of '{files[0]}', received \w+Error: "
    with pytest.raises(ValueError, match=message):
        distribute_files(Pipelines(1), files, parse_fn=wrong, global_batch_size=4)


def test_a_parse_fn_that_returns_another_shape_is_an_error_in_the_step(write):
    dataset = distribute_files(
        create_strategy("one_device"),
        write(9),
        parse_fn=lambda record: tf.zeros([number(record) + 1]),
        global_batch_size=4,
    )
    message = (
        r"expected parse_fn to return the shape \[1\] for every record, as for the first record, received the shape "
        r"\[\d\]; pad or crop the value."
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        next(iter(dataset))
