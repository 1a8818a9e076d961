"""SyncBatchNormalization takes the arguments of Keras's BatchNormalization, and honours or refuses each of them."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

ROWS = np.random.default_rng(0).normal(size=(6, 4, 4, 3)).astype("float32")


@pytest.fixture
def keras():
    import tensorflow as tf

    return tf.keras


def signatures(keras):
    from tfdist.layers import SyncBatchNormalization

    return [
        inspect.signature(one.__init__).parameters for one in (SyncBatchNormalization, keras.layers.BatchNormalization)
    ]


def test_names_order_and_kinds_are_those_of_keras(keras):
    own, stock = ([(one.name, one.kind) for one in parameters.values()] for parameters in signatures(keras))
    assert own == stock


def test_every_default_but_synchronized_is_that_of_keras(keras):
    own, stock = ({name: one.default for name, one in parameters.items()} for parameters in signatures(keras))
    assert own.pop("synchronized") is True
    assert stock.pop("synchronized") is False
    assert own == stock


def test_arguments_given_by_position_reach_the_config(keras):
    from tfdist.layers import SyncBatchNormalization

    given = (1, 0.5, 1e-4, False, True, "ones", "zeros", "ones", "zeros", "l2", "l1")
    own, stock = (
        layer(*given, name="norm", dtype="float64").get_config()
        for layer in (SyncBatchNormalization, keras.layers.BatchNormalization)
    )
    assert {**own, "synchronized": None} == {**stock, "synchronized": None}
    assert (own["axis"], own["momentum"], own["epsilon"], own["center"]) == (1, 0.5, 1e-4, False)


def test_a_layer_is_made_again_from_its_config(keras):
    from tfdist.layers import SyncBatchNormalization

    layer = SyncBatchNormalization(momentum=0.5, gamma_initializer="zeros")
    again = SyncBatchNormalization.from_config(layer.get_config())
    assert type(again) is SyncBatchNormalization
    assert again.get_config() == layer.get_config()
    assert again.synchronized is True


@pytest.mark.parametrize(
    "options",
    [
        {"renorm": True},
        {"renorm_clipping": {"rmax": 2.0}},
        {"renorm_momentum": 0.9},
        {"virtual_batch_size": 2},
        {"adjustment": lambda shape: (1, 0)},
        {"fused": True},
        {"synchronized": False},
        {"axis": [1, 2]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_an_argument_that_cannot_be_honoured_is_refused(options, keras):
    from tfdist.layers import SyncBatchNormalization

    with pytest.raises(ValueError, match=next(iter(options))):
        SyncBatchNormalization(**options)


def test_an_unknown_argument_is_refused(keras):
    from tfdist.layers import SyncBatchNormalization

    # Keras 3 raises a ValueError, Keras 2 a TypeError.
    with pytest.raises((TypeError, ValueError), match="momentun"):
        SyncBatchNormalization(momentun=0.9)


def test_fused_false_keeps_the_variance_of_the_layer_of_keras_2(keras):
    import tensorflow as tf

    from tfdist.keras_compat import keras_in_use
    from tfdist.layers import SyncBatchNormalization

    if keras_in_use().is_keras3:
        # Keras 3 has no fused kernel to choose.
        with pytest.raises(ValueError, match="fused"):
            SyncBatchNormalization(fused=False)
        return
    # The fused kernel keeps the unbiased variance, so the two options give different variances.
    for options in ({"fused": False}, {}):
        own = SyncBatchNormalization(momentum=0.5, **options)
        stock = keras.layers.BatchNormalization(momentum=0.5, **options)
        for layer in (own, stock):
            layer(tf.constant(ROWS), training=True)
        np.testing.assert_allclose(np.asarray(own.moving_variance), np.asarray(stock.moving_variance), rtol=1e-5)


def test_a_mask_of_another_rank_is_refused(keras):
    import tensorflow as tf

    from tfdist.layers import SyncBatchNormalization

    # If there are as many rows as columns, this mask could be broadcast, and would then mask the wrong elements.
    rows, mask = tf.ones([4, 4, 3]), tf.constant([True, True, False, False])
    with pytest.raises(ValueError, match=r"expected a mask with one axis less .* received a mask of shape \(4,\)"):
        SyncBatchNormalization()(rows, training=True, mask=mask)
