from __future__ import annotations

import signal
import threading

import pytest

from tfdist.launch.signals import FORWARDED, forward_signals


@pytest.mark.parametrize("number", FORWARDED)
def test_a_signal_is_given_to_the_function_and_the_old_handler_is_restored(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    received: list[int] = []
    with forward_signals(received.append):
        signal.raise_signal(number)
    assert received == [number]
    assert signal.getsignal(number) is before


def test_the_old_handlers_are_restored_after_an_exception() -> None:
    before = [signal.getsignal(number) for number in FORWARDED]
    with pytest.raises(KeyError), forward_signals(lambda number: None):
        raise KeyError
    assert [signal.getsignal(number) for number in FORWARDED] == before


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with forward_signals(lambda number: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_outside_of_the_main_thread_no_handler_is_set() -> None:
    before = [signal.getsignal(number) for number in FORWARDED]
    seen = []

    def run() -> None:
        with forward_signals(lambda number: None):
            seen.append([signal.getsignal(number) for number in FORWARDED])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    assert seen == [before]
