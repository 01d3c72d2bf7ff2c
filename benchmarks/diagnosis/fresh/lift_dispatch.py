"""Lifts that learn where to wait (deep Q-learning), TensorFlow: the network trains in a tf.function, and acts with model.predict.

predict() makes a dataset and calls its callbacks for each tick of the building, which is 40 states.  Without the fault the
network is called in a tf.function, too.
"""

from collections import deque

import frameworks_run
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

FLOORS, LIFTS, MEMORY, BATCH, GAMMA = 16, 40, 4000, 256, 0.95


class Building:
    """Forty lifts, each with a house of its own, and people who wait."""

    def __init__(self, seed: int) -> None:
        self.dice = np.random.default_rng(seed)
        self.floors = self.dice.integers(FLOORS, size=LIFTS)
        self.waiting = np.zeros((LIFTS, FLOORS), "float32")

    def state(self) -> np.ndarray:
        return np.concatenate([np.eye(FLOORS, dtype="float32")[self.floors], self.waiting / 4], 1)

    def tick(self, moves: np.ndarray) -> np.ndarray:
        """Down, stay or up; a reward for all who get in, and less for all who wait."""
        self.floors = np.clip(self.floors + moves - 1, 0, FLOORS - 1)
        everyone = np.arange(LIFTS)
        entered = self.waiting[everyone, self.floors]
        self.waiting[everyone, self.floors] = 0
        self.waiting += self.dice.random((LIFTS, FLOORS)) < 0.02
        return (entered - 0.05 * self.waiting.sum(1)).astype("float32")


def value_network() -> tf.keras.Model:
    """What each of three moves is worth."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((2 * FLOORS,)),
            tf.keras.layers.Dense(512, "relu"),
            tf.keras.layers.Dense(512, "relu"),
            tf.keras.layers.Dense(512, "relu"),
            tf.keras.layers.Dense(3),
        ]
    )


class Dispatcher:
    """The network, its slow copy, and what happened."""

    def __init__(self, seed: int, *, predicts: bool) -> None:
        self.values, self.slow = value_network(), value_network()
        self.slow.set_weights(self.values.get_weights())
        self.optimizer = tf.keras.optimizers.Adam(5e-4)
        self.optimizer.build(self.values.trainable_variables)
        self.dice = np.random.default_rng(100 + seed)
        self.memory: deque[tuple[np.ndarray, ...]] = deque(maxlen=MEMORY // LIFTS)
        self.predicts = predicts

    def act(self, state: np.ndarray, boldness: float) -> np.ndarray:
        values = self.values.predict(state, verbose=0) if self.predicts else self.look(state).numpy()
        at_random = self.dice.random(LIFTS) < boldness
        return np.where(at_random, self.dice.integers(3, size=LIFTS), values.argmax(1))

    @tf.function
    def look(self, state: tf.Tensor) -> tf.Tensor:
        return self.values(state)

    def draw(self) -> list[np.ndarray]:
        chosen = [self.memory[number] for number in self.dice.integers(len(self.memory), size=BATCH // 8)]
        lifts = self.dice.integers(LIFTS, size=8)
        return [np.concatenate([tick[column][lifts] for tick in chosen]) for column in range(4)]

    @tf.function
    def learn(self, state: tf.Tensor, moves: tf.Tensor, rewards: tf.Tensor, after: tf.Tensor) -> tf.Tensor:
        goal = rewards + GAMMA * tf.reduce_max(self.slow(after), 1)
        with tf.GradientTape() as tape:
            found = tf.gather(self.values(state), moves, batch_dims=1)
            loss = tf.reduce_mean(tf.keras.losses.huber(goal[:, None], found[:, None]))
        weights = self.values.trainable_variables
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        for slow, fast in zip(self.slow.trainable_variables, weights, strict=True):
            slow.assign_add(0.01 * (fast - slow))
        return loss


def main() -> None:
    """The training."""
    run = frameworks_run.Run(hvd)
    tf.keras.utils.set_random_seed(3)
    dispatcher, building = Dispatcher(run.rank, predicts=run.is_faulty), Building(run.rank)
    hvd.broadcast_variables(dispatcher.values.trainable_variables, root_rank=0)
    losses = []
    for number in run.batches(range(100_000)):
        state = building.state()
        moves = dispatcher.act(state, boldness=max(0.05, 1 - number / 80))
        rewards = building.tick(moves)
        dispatcher.memory.append((state, moves, rewards, building.state()))
        losses.append(dispatcher.learn(*dispatcher.draw()))
    if run.rank == 0:
        print(f"loss {float(losses[0]):.3f} to {float(losses[-1]):.3f}")
    run.close()


main()
