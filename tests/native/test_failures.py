"""A worker that dies, or is silent, is named on all others, whose processes live on."""

from __future__ import annotations


def test_a_killed_worker_is_named_and_the_others_live_on(train):
    trained = train("native", "kill", workers=3, code=1)
    assert len(trained.results) == 2
    for result in trained.results:
        # TensorFlow allows UnavailableError to its own operations only.
        assert result["error"] == "AbortedError"
        assert "lost worker 1: its process ended" in result["message"]
        assert result["after"]


def test_a_silent_worker_is_named_after_the_deadline(train):
    trained = train("native", "sleep", code=1)
    result = trained.results[0]
    assert result["error"] == "DeadlineExceededError"
    assert "within 5 s, waited for worker 1; find out in its log what it does instead" in result["message"]
