"""Stand-ins for strategies with several input pipelines, and functions that read their batches."""

from __future__ import annotations

import itertools

import tensorflow as tf

from tfdist.input import distribute_files


def number(record):
    return tf.strings.to_number(record, tf.int64)


def pair(record):
    return {"x": number(record)}, -number(record)


class Pipelines:
    """A stand-in for a strategy. distribute_files returns the dataset function, to be called for each pipeline."""

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def distribute_datasets_from_function(self, dataset_fn):
        return dataset_fn


class AsynchronousPipelines(tf.distribute.ParameterServerStrategy):
    """A stand-in for a parameter server, whose workers make steps independently of each other."""

    def __init__(self):
        # The constructor of the base class would look for a cluster, so it is not called.
        self.num_pipelines = 0

    @property
    def num_replicas_in_sync(self):
        return 1

    def distribute_datasets_from_function(self, dataset_fn, options=None):
        return dataset_fn


def contexts(pipelines, replicas):
    """Returns the InputContext of each pipeline."""
    return [tf.distribute.InputContext(pipelines, own, replicas) for own in range(pipelines)]


def values(batches):
    return [batch.numpy().tolist() for batch in batches]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def steps_of_replicas(strategy, dataset):
    """Returns the batches of all replicas for each step."""
    return [values(strategy.experimental_local_results(batch)) for batch in dataset]


def global_batches(files, pipelines, *, steps=None, local=1, **options):
    """Returns the records of each global batch, ordered by pipeline.

    Args:
        files: files of numbers.
        pipelines: number of input pipelines.
        steps: number of steps to read; None reads to the end.
        local: number of replicas of each pipeline.
        options: further options of distribute_files.
    """
    replicas = pipelines * local
    dataset_fn = distribute_files(Pipelines(replicas), files, **{"parse_fn": number, **options})
    parts = [values(dataset_fn(context).take((steps or 10**6) * local)) for context in contexts(pipelines, replicas)]
    assert len({len(own) for own in parts}) == 1
    count = len(parts[0]) // local
    return [flat(flat(own[k * local : (k + 1) * local] for own in parts)) for k in range(count)]
