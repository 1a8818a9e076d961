"""What a worker reads: from files to the batches that fit, evaluate and a custom loop take, on every strategy."""

from tfdist.input.distribute import distribute_files
from tfdist.input.records import count_records, write_tfrecords

__all__ = ["count_records", "distribute_files", "write_tfrecords"]
