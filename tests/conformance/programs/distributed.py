"""Cases on a strategy: distributed.py RESULTS STRATEGY DEVICES CASE ...; each worker writes RESULTS-<rank>."""

import json
import sys

import tfdist

results, name, devices, *names = sys.argv[1:]
strategy = tfdist.create_strategy(name, devices=int(devices) or None, startup_timeout_seconds=60)

import cases  # noqa: E402  after the strategy, which must be the first to touch TensorFlow

with open(f"{results}-{cases.rank()}", "w") as file:
    json.dump(cases.run_all(strategy, names), file)
