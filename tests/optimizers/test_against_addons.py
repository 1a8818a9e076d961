"""LAMB compared with the LAMB of TensorFlow Addons, in the environment that has TensorFlow Addons."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist.optimizers import LAMB, create_optimizer

tfa = pytest.importorskip("tensorflow_addons", reason="TensorFlow Addons supports TensorFlow up to 2.15")


def trained(optimizer):
    rng = np.random.default_rng(3)
    shapes = {"dense/kernel": (6, 5), "dense/bias": (5,), "norm/gamma": (5,), "conv/kernel": (3, 3, 2, 4)}
    variables = [tf.Variable(rng.normal(size=s).astype("float32"), name=name) for name, s in shapes.items()]
    optimizer.build(variables) if hasattr(optimizer, "build") else optimizer._create_all_weights(variables)

    @tf.function
    def step(grads):
        optimizer.apply_gradients(zip(grads, variables, strict=True))

    for _ in range(100):
        step([tf.constant(rng.normal(size=s).astype("float32")) for s in shapes.values()])
    return [variable.numpy() for variable in variables]


@pytest.mark.parametrize(
    ("decay", "adaptation"),
    [(None, None), (["bias", "norm"], None), (["bias"], ["norm"]), (["bias", "gamma"], ["kernel"])],
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_a_hundred_steps_with_exclusions_are_those_of_addons(decay, adaptation, weight_decay):
    shared = {"learning_rate": 0.002, "weight_decay": weight_decay, "exclude_from_weight_decay": decay}
    theirs = trained(tfa.optimizers.LAMB(exclude_from_layer_adaptation=adaptation, **shared))
    ours = trained(LAMB(exclude_from_adaptation=adaptation, **shared))
    for one, other in zip(ours, theirs, strict=True):
        assert np.abs(one - other).max() <= 1e-6 * np.abs(other).max()


def test_the_config_of_addons_is_read():
    theirs = tfa.optimizers.LAMB(0.01, weight_decay=0.1, beta_1=0.8, exclude_from_weight_decay=["bias"])
    ours = LAMB.from_config(theirs.get_config())
    assert (ours.weight_decay, ours.beta_1, ours.epsilon) == (pytest.approx(0.1), pytest.approx(0.8), 1e-6)
    assert ours.get_config()["exclude_from_weight_decay"] == ["bias"]
    assert ours.exclude_from_adaptation == ("bias",)


SAVE = """
import sys
import numpy as np, tensorflow as tf, tensorflow_addons as tfa

model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
model.compile(tfa.optimizers.LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
model.fit(np.ones([8, 3]), np.ones([8, 2]), verbose=0)
model.save(sys.argv[1])
print(model.get_weights()[0].tolist())
"""


@pytest.mark.parametrize("ending", ["h5", "keras"])
def test_a_model_saved_with_addons_is_read_without_addons(ending, children, tmp_path):
    path = str(tmp_path / f"model.{ending}")
    saved = children.run(SAVE, path)
    assert saved.code == 0
    read = children.run(
        """
        import sys
        import numpy as np, tensorflow as tf
        from tfdist.optimizers import LAMB

        model = tf.keras.models.load_model(sys.argv[1], custom_objects={"Addons>LAMB": LAMB})
        assert "tensorflow_addons" not in sys.modules
        assert isinstance(model.optimizer, LAMB)
        assert model.optimizer.get_config()["exclude_from_weight_decay"] == ["bias"]
        print(model.get_weights()[0].tolist())
        model.fit(np.ones([8, 3]), np.ones([8, 2]), verbose=0)
        """,
        path,
    )
    assert read.code == 0
    assert read.out.splitlines()[-1] == saved.out.splitlines()[-1]


def test_create_optimizer_makes_the_lamb_of_addons_by_name():
    made = create_optimizer("tfa_lamb", learning_rate=0.1, weight_decay=0.1, exclude_from_weight_decay=["bias"])
    assert isinstance(made, tfa.optimizers.LAMB)
    assert made.get_config()["exclude_from_weight_decay"] == ["bias"]


def test_exclusions_that_addons_would_replace_are_refused():
    with pytest.raises(ValueError, match=r"^expected exclude_from_layer_adaptation to hold patterns for tfa_lamb, rec"):
        create_optimizer(
            "tfa_lamb", learning_rate=0.1, exclude_from_weight_decay=["bias"], exclude_from_layer_adaptation=[]
        )
