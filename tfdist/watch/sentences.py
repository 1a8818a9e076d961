"""Sentences that say what each worker does while the training stalls, and what to do about it."""

from __future__ import annotations

from tfdist.watch import stall
from tfdist.watch.phases import CALLBACKS, OUTSIDE, SAVING, TRACING
from tfdist.watch.stall import Stall, Verdict
from tfdist.watch.standing import SERVES, Standing

_MOST_NAMED = 8


def report(found: Stall, *, own: int, usual_step_seconds: float | None, deadline_seconds: float | None) -> str:
    """Returns the lines of a log that describe a stall.

    Args:
        found: the stall.
        own: number of the worker in whose log the lines are.
        usual_step_seconds: usual duration of a training step; None if it is not known.
        deadline_seconds: after how long the job ends; None for never.

    Example:
        >>> blocked = Standing(worker=0, phase="training", seconds=70.0, limit=60.0, step=9, batch=4)
        >>> alone = Stall(verdicts=(Verdict(standing=blocked, kind=stall.DATA),))
        >>> print(report(alone, own=0, usual_step_seconds=0.5, deadline_seconds=300.0))
        stall: no step for 70 s, and a step usually takes 0.5 s; worker 0 has not finished step 9 (epoch 1, batch 4)
          worker 0 waits for its own data: its pipeline has delivered nothing for 70 s; find out at which call it is ...
          the job ends with exit code 75 in 300 s, unless it goes on
    """
    standing = found.verdicts[own].standing
    usual = "" if usual_step_seconds is None else f", and a step usually takes {_seconds(usual_step_seconds)}"
    furthest = max(verdict.standing.step for verdict in found.verdicts)
    late = {verdict.standing.worker for verdict in found.verdicts if verdict.standing.step < furthest}
    behind = sorted(late | set(found.causes))
    lines = [
        f"stall: no step for {_seconds(standing.seconds)}{usual}; {_workers(behind)} not finished step {furthest} "
        f"(epoch {standing.epoch}, batch {standing.batch})"
    ]
    lines += [sentence(verdict, found) for verdict in found.verdicts]
    if any(verdict.kind in (stall.STOPPED, stall.ENDED, stall.CUT_OFF) for verdict in found.verdicts):
        lines.append(
            "TensorFlow itself gives up a worker that is silent for about 9 s; an error of that kind, if the program "
            "does not handle it, ends this process with exit code 75"
        )
    if deadline_seconds is not None:
        lines.append(f"the job ends with exit code 75 in {_seconds(deadline_seconds)}, unless it goes on")
    return "\n  ".join(lines)


def because(found: Stall) -> str:
    """Returns the reason in a few words, which have to fit into a datagram.

    Example:
        >>> blocked = Standing(worker=1, phase="training", seconds=70.0, limit=60.0)
        >>> because(Stall(verdicts=(Verdict(standing=blocked, kind=stall.DATA),)))
        'the training has stalled because of worker 1'
    """
    if len(found.causes) > _MOST_NAMED:
        return f"the training has stalled because of {len(found.causes)} workers"
    return f"the training has stalled because of worker {', '.join(map(str, found.causes))}"


def sentence(verdict: Verdict, found: Stall) -> str:
    """Returns one sentence that says what a worker does and what to do about it.

    Args:
        verdict: what the worker does.
        found: the stall, with the verdicts of all workers.

    Example:
        >>> gone = Standing(worker=1, phase="training", seconds=70, limit=60, address="b:2222", silent_seconds=70)
        >>> verdict = Verdict(standing=gone, kind=stall.ENDED)
        >>> sentence(verdict, Stall(verdicts=(verdict,)))
        'worker 1 has ended: no process listens at b:2222 any more; see its log.'
    """
    one = verdict.standing
    who = f"worker {one.worker}"
    silence = f"no record of it has come for {_seconds(one.silent_seconds)}"
    at = f"; its main thread was last at {one.at}" if one.at else ""
    since = _seconds(one.seconds)
    match verdict.kind:
        case stall.STOPPED:
            shown = "is in state T, stopped by a signal" if one.state == "T" else "answers nothing"
            return (
                f"{who} is stopped: its machine accepts connections at {one.address}, but its process "
                f"{f'{one.pid} ' if one.pid else ''}{shown}, and {silence}{at}; continue it with `kill -CONT` on its "
                "machine."
            )
        case stall.ENDED:
            return f"{who} has ended: no process listens at {one.address} any more{at}; see its log."
        case stall.CUT_OFF:
            return f"{who} is out of reach: {_cut(verdict, found)}, and {silence}{at}; {_cut_advice(verdict, found)}."
        case stall.HELD if not one.is_heard:
            return unheard_sentence(one)
        case stall.HELD:
            return (
                f"{who} runs no Python code: its server answers at {one.address}, but {silence}, so that native code "
                f"probably holds the global interpreter lock{at}; its log has the stack."
            )
        case stall.DATA:
            where = f", and a thread of the pipeline is at {one.data_thread}" if one.data_thread else ""
            return (
                f"{who} waits for its own data: its pipeline has delivered nothing for {since}{where}; find out at "
                "which call it is blocked in the stack in its log."
            )
        case stall.BUSY:
            does = _busy(one, is_alone=len(found.verdicts) == 1)
            return f"{who} {does}{f', at {one.at}' if one.at else ''}; its log has the stack."
        case stall.WAITS if not any(other.is_cause for other in found.verdicts):
            what = "batch" if one.waits == "batch" else "gradients"
            return (
                f"{who} waits for the {what} of the others, as they all do: a connection between two workers "
                "probably hangs."
            )
        case stall.WAITS:
            return f"{who} waits for the others."
        case _:
            return f"{who} is within its limit: {one.phase} for {since} of {_seconds(one.limit)}."


def unheard_sentence(one: Standing) -> str:
    """Returns a sentence about a worker whose server answers, but of which no record has come.

    Args:
        one: what is known about the worker.
    """
    return (
        f"worker {one.worker} has sent no record, although its server answers at {one.address}: allow UDP between the "
        "machines of the workers, or its Python code does not run."
    )


def _busy(one: Standing, *, is_alone: bool) -> str:
    since = f"for {_seconds(one.seconds)}, more than {_seconds(one.limit)}"
    if one.phase in (CALLBACKS, SAVING):
        return f"runs callbacks or saves {since}"
    if one.phase == OUTSIDE:
        return f"runs another part of the program than fit {since}"
    if one.phase == TRACING:
        return f"traces or compiles a function {since}"
    if is_alone:
        return f"has not ended its step {since}: it computes, or waits for its data"
    if one.waits is None:
        return f"is in its step {since}, in which it may wait for other workers or for its data"
    what = "has its batch, but" if one.counts_batches else "waits for no other worker, and"
    return f"{what} has not computed its step {since}"


def _cut(verdict: Verdict, found: Stall) -> str:
    reply = verdict.standing.reply or "nothing"
    return f"{verdict.standing.address} replies nothing ({reply})" if reply != SERVES else reply


def _cut_advice(verdict: Verdict, found: Stall) -> str:
    others = [other for other in found.verdicts if other.standing.silent_seconds > 0]
    if len(others) > 1 and all(other.kind == stall.CUT_OFF for other in others):
        return "no worker can be reached, so that the link of this machine is probably cut"
    return "its machine is off, or the network link to it is cut"


def _workers(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"worker {numbers[0]} has"
    return f"workers {', '.join(map(str, numbers))} have"


def _seconds(seconds: float) -> str:
    """Returns a duration in few characters.

    >>> _seconds(0.0512), _seconds(12.34), _seconds(312.3)
    ('0.051 s', '12 s', '312 s')
    """
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
