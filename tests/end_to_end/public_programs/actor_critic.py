"""Actor-critic: policy gradient and Huber loss on returns that are known, in one train_step."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.end_to_end.public_programs.common import ROWS, batches, results, scope

keras = tf.keras
layers = keras.layers
ACTIONS = 3


class ActorCritic(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.common = layers.Dense(16, activation="relu")
        self.actor = layers.Dense(ACTIONS, activation="softmax")
        self.critic = layers.Dense(1)
        self.huber = keras.losses.Huber(delta=0.5)
        self.actor_tracker = keras.metrics.Mean(name="actor_loss")
        self.critic_tracker = keras.metrics.Mean(name="critic_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.actor_tracker, self.critic_tracker]

    def call(self, states: Any) -> Any:
        x = self.common(states)
        return self.actor(x), self.critic(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        states, actions, returns = data
        with tf.GradientTape() as tape:
            probabilities, values = self(states, training=True)
            log_probabilities = tf.math.log(tf.gather(probabilities, actions, batch_dims=1))
            advantage = tf.stop_gradient(returns - values[:, 0])
            actor_loss = tf.reduce_mean(-log_probabilities * advantage)
            critic_loss = self.huber(returns[:, None], values)
            entropy = -tf.reduce_mean(tf.reduce_sum(probabilities * tf.math.log(probabilities), axis=1))
            loss = actor_loss + critic_loss - 0.01 * entropy
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self.actor_tracker.update_state(actor_loss)
        self.critic_tracker.update_state(critic_loss)
        return {"actor_loss": self.actor_tracker.result(), "critic_loss": self.critic_tracker.result()}


def run(strategy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(9)
    data = batches((rng.normal(size=(ROWS, 4)), rng.integers(0, ACTIONS, size=ROWS), rng.normal(size=ROWS)))
    with scope(strategy):
        model = ActorCritic()
        model.build((None, 4))
        model.compile(optimizer=keras.optimizers.Adam(1e-2))
    return results(model, model.fit(data, epochs=3, verbose=0))
