"""Prints a table of the predicted time to a loss, for several algorithms, numbers of workers, links and stragglers.

The loss is that of a logistic regression made from a seed. Each cell has the seconds with the best of the learning
rates, or "-" if no rate reached the loss.
"""

from __future__ import annotations

import argparse
import itertools

from tfdist._cli import exit_code_of
from tfdist.averaging.mixing import one_peer_exponential
from tfdist.averaging.simulate.asynchronous import Staleness
from tfdist.averaging.simulate.local import Rounds
from tfdist.averaging.simulate.methods import Gossip, Method, ParameterServer, Synchronous
from tfdist.averaging.simulate.optimizers import SGD
from tfdist.averaging.simulate.outer import Nesterov
from tfdist.averaging.simulate.predict import fastest
from tfdist.averaging.simulate.problems import LogisticRegression
from tfdist.averaging.simulate.times import Link, Machines


def methods(workers: int, *, every: int, part_of_servers: float) -> dict[str, Method]:
    """Returns the columns of the table."""
    servers = max(1, round(workers * part_of_servers))
    return {
        "synchronous": Synchronous(),
        f"average, every {every}": Rounds(every=every),
        f"DiLoCo's rule, every {every}": Rounds(every=every, outer=Nesterov(), average_slots=False),
        "D-PSGD, one peer": Gossip(mixing=one_peer_exponential(workers)),
        "asynchronous, 1/tau": ParameterServer(staleness=Staleness(scale="1/tau"), servers=servers),
        "soft_sync of 7/8": ParameterServer(staleness=Staleness(soft_sync=max(1, workers * 7 // 8)), servers=servers),
    }


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    options = argparse.ArgumentParser(prog="python -m tfdist.averaging.simulate", description=__doc__)
    options.add_argument("--workers", type=int, nargs="+", default=[64, 1024])
    options.add_argument("--mbit", type=float, nargs="+", default=[1000, 10000], help="rates of the links in Mbit/s")
    options.add_argument("--slow-factor", type=float, nargs="+", default=[1, 4], help="how much slower one worker is")
    options.add_argument("--step-seconds", type=float, default=0.1, help="time of a step of a worker")
    options.add_argument("--jitter", type=float, default=0.1, help="mean delay of a step, as a part of its time")
    options.add_argument("--latency-seconds", type=float, default=5e-5, help="time of an empty message")
    options.add_argument("--megabytes", type=float, default=100, help="size of the weights, and of the gradients")
    options.add_argument("--every", type=int, default=16, help="local steps of a round")
    options.add_argument("--servers", type=float, default=0.25, help="parameter servers for each worker")
    options.add_argument("--batch", type=int, default=16, help="rows of a worker in a step")
    options.add_argument("--rows", type=int, default=32768, help="rows of the problem")
    options.add_argument("--part", type=float, default=0.01, help="part of the first loss that is to be reached")
    options.add_argument("--max-steps", type=int, default=1000, help="steps of each worker at most")
    options.add_argument("--rates", type=float, nargs="+", default=[4, 2, 8, 1, 0.5, 16, 0.25], help="rates to try")
    return options


def main(argv: list[str] | None = None) -> int:
    """Prints the table, a line at a time."""
    options = parser().parse_args(argv)
    names = list(methods(1, every=options.every, part_of_servers=options.servers))
    print(f"| workers | Mbit/s | slowest worker | {' | '.join(names)} |")
    print("| --- " * (3 + len(names)) + "|")
    for workers, mbit, factor in itertools.product(options.workers, options.mbit, options.slow_factor):
        problem = LogisticRegression(workers=workers, batch=options.batch, rows=options.rows)
        machines = Machines.alike(workers, seconds=options.step_seconds, slow=1, factor=factor, jitter=options.jitter)
        link = Link(latency_seconds=options.latency_seconds, bytes_per_second=mbit * 1e6 / 8)
        cells = []
        for method in methods(workers, every=options.every, part_of_servers=options.servers).values():
            found, optimizer = fastest(
                problem,
                method,
                machines=machines,
                link=link,
                size=options.megabytes * 1e6,
                optimizers=[SGD(rate) for rate in options.rates],
                part=options.part,
                max_steps=options.max_steps,
            )
            steps, rate = f"{found.steps:.0f}", f"{optimizer.learning_rate:g}"
            cells.append("-" if found.seconds is None else f"{found.seconds:,.1f} ({steps}, {rate})")
        print(f"| {workers:,} | {mbit:,.0f} | {factor:g} x | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_code_of(main))
