"""Graph attention: batches of indices of nodes, and every step computes the whole graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers

NODES, EDGES, FEATURES, CLASSES = 90, 300, 10, 4


class GraphAttention(layers.Layer):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(
            shape=(input_shape[0][-1], self.units), initializer="glorot_uniform", name="kernel"
        )
        self.kernel_attention = self.add_weight(
            shape=(self.units * 2, 1), initializer="glorot_uniform", regularizer="l2", name="attention"
        )
        self.built = True

    def call(self, inputs: Any) -> Any:
        node_states, edges = inputs
        node_states = tf.matmul(node_states, self.kernel)
        expanded = tf.reshape(tf.gather(node_states, edges), (tf.shape(edges)[0], -1))
        scores = tf.squeeze(tf.nn.leaky_relu(tf.matmul(expanded, self.kernel_attention)), -1)
        scores = tf.math.exp(tf.clip_by_value(scores, -2, 2))
        sums = tf.math.unsorted_segment_sum(scores, edges[:, 0], tf.reduce_max(edges[:, 0]) + 1)
        scores = scores / tf.repeat(sums, tf.math.bincount(tf.cast(edges[:, 0], "int32")))
        neighbours = tf.gather(node_states, edges[:, 1])
        return tf.math.unsorted_segment_sum(neighbours * scores[:, None], edges[:, 0], tf.shape(node_states)[0])


class GraphAttentionNetwork(keras.Model):
    def __init__(self, node_states: Any, edges: Any) -> None:
        super().__init__()
        self.node_states, self.edges = node_states, edges
        self.preprocess = layers.Dense(8, activation="relu")
        self.attention_layers = [GraphAttention(8) for _ in range(2)]
        self.output_layer = layers.Dense(CLASSES)

    def call(self, inputs: Any) -> Any:
        node_states, edges = inputs
        x = self.preprocess(node_states)
        for layer in self.attention_layers:
            x = layer([x, edges]) + x
        return self.output_layer(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        indices, labels = data
        with tf.GradientTape() as tape:
            outputs = self([self.node_states, self.edges])
            loss = self.compute_loss(y=labels, y_pred=tf.gather(outputs, indices))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self._logs(loss, labels, tf.gather(outputs, indices))

    def _logs(self, loss: Any, labels: Any, outputs: Any) -> dict[str, Any]:
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(labels, outputs)
        return {m.name: m.result() for m in self.metrics}

    def predict_step(self, data: Any) -> Any:
        return tf.nn.softmax(tf.gather(self([self.node_states, self.edges]), data))

    def test_step(self, data: Any) -> dict[str, Any]:
        indices, labels = data
        outputs = tf.gather(self([self.node_states, self.edges]), indices)
        loss = self.compute_loss(y=labels, y_pred=outputs)
        return self._logs(loss, labels, outputs)


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(23)
    edges = np.concatenate([np.stack([np.arange(NODES)] * 2, 1), rng.integers(0, NODES, size=(EDGES, 2))])
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    states = rng.normal(size=(NODES, FEATURES))
    indices = rng.permutation(NODES)[:ROWS]
    labels = rng.integers(0, CLASSES, size=ROWS)
    with scope(strategy):
        model = GraphAttentionNetwork(tf.constant(states), tf.constant(edges))
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
        )
    data = batches((indices, labels))
    history = model.fit(data, validation_data=data, epochs=2, verbose=0)
    evaluated = model.evaluate(data, verbose=0)
    return results(model, history, evaluated, predicted=model.predict(batches(indices), verbose=0))
