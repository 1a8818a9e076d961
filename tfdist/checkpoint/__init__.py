"""Snapshots of a training run: in shared memory and on disk, from which the run goes on."""
