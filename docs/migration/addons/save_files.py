"""Saves a model that LAMB of TensorFlow Addons has trained, in every format of Keras 2.15."""

import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(2)])
model.compile(tfa.optimizers.LAMB(0.01, weight_decay=0.1, exclude_from_weight_decay=["bias"]), "mse")
model.fit(np.ones([8, 3]), np.ones([8, 2]), verbose=0)

model.save("model.h5")
model.save("model.keras")
model.save("saved_model")
model.save_weights("w.weights.h5")
model.save_weights("weights/w")
tf.train.Checkpoint(model=model, optimizer=model.optimizer).save("checkpoint/c")
np.save("weight.npy", model.get_weights()[0])
