"""Three ranks sum until one of them is killed; the others connect again, without it, and sum on in the same process.

python survivors.py FOLDER         starts the ranks; each of them writes what it found into the folder
python survivors.py FOLDER RANK    one rank
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

RANKS, VICTIM, STEPS = 3, 1, 20
SECONDS = 30.0
ALL_REDUCE = 1


def rank_program(folder: Path, rank: int) -> None:
    import tensorflow as tf

    from tfdist.allreduce.native.communicator import Communicator, Listener
    from tfdist.allreduce.native.library import operations

    def connect(run_id: str, ranks: list[int]) -> Communicator:
        """Connects with the given ranks; each writes where it listens into a file."""
        listener = Listener("127.0.0.1", shares_memory=True, run_id=run_id)
        own = folder / f"{run_id}-{rank}"
        text = f"rank_{rank} 127.0.0.1 {listener.port} {listener.machine} {listener.local}"
        own.with_suffix(".part").write_text(text)
        own.with_suffix(".part").rename(own)
        files = [folder / f"{run_id}-{other}" for other in ranks]
        until = time.monotonic() + SECONDS
        while not all(file.exists() for file in files):
            assert time.monotonic() < until, f"expected {files}"
            time.sleep(0.01)
        addresses = [file.read_text() for file in files]
        return listener.connect(ranks.index(rank), addresses, timeout_seconds=SECONDS)

    def summing(communicator: Communicator):
        token = tf.Variable(0)

        @tf.function
        def total(value: tf.Tensor) -> tf.Tensor:
            started = operations().tfdist_start(
                value=value, key=1, token=token.handle, communicator=communicator.number, kind=ALL_REDUCE, group=1,
                ranks=communicator.size, timeout_seconds=SECONDS,
            )  # fmt: skip
            return operations().tfdist_wait(operation=started, T=tf.float32)

        return total

    value = tf.fill([100_000], float(rank + 1))
    first = connect("first", list(range(RANKS)))
    total = summing(first)
    found = {"pid": os.getpid(), "first": float(total(value)[-1])}
    try:
        for step in range(STEPS):
            if rank == VICTIM and step == STEPS // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            total(value)
    except tf.errors.AbortedError as error:
        found["error"] = error.message
    first.close()
    second = connect("second", [other for other in range(RANKS) if other != VICTIM])
    total = summing(second)
    found["second"] = [float(total(value)[-1]) for _ in range(STEPS)]
    found["pid_after"] = os.getpid()
    (folder / f"found-{rank}.json").write_text(json.dumps(found))


def main() -> None:
    folder = Path(sys.argv[1])
    if len(sys.argv) > 2:
        return rank_program(folder, int(sys.argv[2]))
    command = [sys.executable, __file__, str(folder)]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(RANKS)]
    codes = [rank.wait() for rank in ranks]
    print("CODES", json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
