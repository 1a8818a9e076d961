// A collective operation of one rank: which bytes go to whom, and what becomes of the bytes that come.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sum.h"

namespace tfdist {

enum class Kind : uint8_t { kAllReduce = 1, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };

// The numbers are those of TensorFlow's codes.
enum class Code {
  kOk = 0,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kResourceExhausted = 8,
  kAborted = 10,
  kInternal = 13,
  kUnavailable = 14,
};

struct Status {
  Code code = Code::kOk;
  std::string message;
};

using Clock = std::chrono::steady_clock;

// What a rank asks for. All ranks ask for the same, with the same tag.
struct Request {
  Kind kind;
  DType dtype;
  // Elements of `in`; for kBroadcast and kReceive of `out`.
  size_t elements;
  // Both stay valid until `done` is called. `out` may be `in` for kAllReduce and kBroadcast.
  const char* in;
  char* out;
  // The rank that sends, for kBroadcast; the other rank, for kSend and kReceive.
  int peer = 0;
  uint64_t tag;
  double timeout_seconds;
  // Called once, on the thread of the engine.
  std::function<void(const Status&)> done;
};

// How many bytes of a part are there already.
struct Ready {
  // Counts the bytes of a longer part; null if all are there.
  const size_t* count = nullptr;
  // How many bytes of the longer part are before this part.
  size_t before = 0;

  size_t Of(size_t bytes) const {
    if (count == nullptr) return bytes;
    return *count <= before ? 0 : std::min(*count - before, bytes);
  }
};

// Bytes for one peer. They are sent in the order in which they are in memory.
struct Outgoing {
  int phase;
  const char* from;
  size_t bytes;
  Ready ready = {};
  size_t sent = 0;
};

// The sum of a part of the array, added up by this rank.
struct Summation {
  // The phase of the messages with the summands.
  int phase;
  // Whose summands, in the order in which they are added up; one of them is this rank.
  std::vector<int> ranks;
  const char* own;
  Ready own_ready;
  char* to;
  size_t bytes;
  // Bytes that are added up.
  size_t ready = 0;
};

// Bytes from one peer: summands, or bytes that are copied.
struct Incoming {
  int phase;
  // What these bytes are summands of; null if they are copied.
  const Summation* sum;
  char* to;
  size_t bytes;
  // Whether these bytes are the part that this rank passes on.
  bool is_own = false;
  size_t received = 0;
  bool is_complete = false;
  // Summands that had to be taken out of the channel early.
  std::vector<char> spilled = {};
  size_t spilled_from = 0;
};

// The ranks of each host, in order.
using Hosts = std::vector<std::vector<int>>;

struct Operation {
  Request request;
  // Which operation of its tag it is.
  uint32_t round = 0;
  Clock::time_point deadline;
  // By peer.
  std::vector<std::vector<Outgoing>> outgoing;
  std::vector<std::vector<Incoming>> incoming;
  // What this rank adds up; a later one may have the result of an earlier one as its own summand.
  std::vector<Summation> sums;
  // Whether summing overwrites what this rank sends, so that it has to send first.
  bool sends_first = false;
  // Bytes of the part that this rank passes on, which are there.
  size_t passed_on = 0;
  // Messages that are not sent, not received, and sums that are not complete.
  int unfinished = 0;
  // The next one of those that have nothing unfinished.
  Operation* next_finished = nullptr;

  Incoming* Find(int peer, int phase) {
    for (auto& part : incoming[peer]) {
      if (part.phase == phase) return &part;
    }
    return nullptr;
  }
};

// The first and the last element of the part of an array that a rank sums.
struct Part {
  size_t begin, end;
};
__attribute__((visibility("default"))) Part PartOf(size_t elements, int rank, int size);

// Returns the operation of a request, with its messages.
//
// Args:
//   hosts: the ranks of each host, if each host has the same number of them, and more than one; else empty.
std::unique_ptr<Operation> Plan(Request request, int rank, int size, const Hosts& hosts);

}  // namespace tfdist
