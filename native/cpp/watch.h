// Waiting for a short time without sleeping.
#pragma once

#include <sched.h>

#include <chrono>

namespace tfdist {

// Calls a function again and again until it returns true, and returns whether it did. To sleep and to be woken takes
// longer than a small message. Other threads have the core between two calls; if one of them needs it, this returns
// early, since a thread that sleeps has the core back sooner than one that gave it away.
template <class Function>
bool WatchFor(Function is_true) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kLongest = std::chrono::microseconds(100), kGivenAway = std::chrono::microseconds(20);
  auto now = Clock::now();
  const auto until = now + kLongest;
  while (now < until) {
    auto before = now;
    sched_yield();
    if (is_true()) return true;
    now = Clock::now();
    if (now - before > kGivenAway) return false;
  }
  return false;
}

}  // namespace tfdist
