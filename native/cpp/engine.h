// Runs the collective operations of one rank on one thread, and has a second one send large messages if there are cores.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "channel.h"
#include "file_descriptor.h"
#include "forked.h"
#include "lifeline.h"
#include "operation.h"
#include "sender.h"

namespace tfdist {

// Begins each fragment of a message. Headers and fragments are multiples of 64 bytes, so that elements are aligned.
struct alignas(64) Header {
  uint32_t magic;
  uint8_t kind;
  uint8_t phase;
  uint16_t reserved;
  int32_t dtype;
  uint32_t round;
  uint64_t elements;
  uint64_t tag;
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(Header) == 64);

// The connections of a rank to all others.
struct Mesh {
  int rank;
  // By rank; null for the own rank.
  std::vector<std::unique_ptr<Channel>> channels;
  std::vector<std::unique_ptr<Lifeline>> lifelines;
  // See Plan.
  Hosts hosts;
  // Written to by other processes of this host to wake the thread.
  FileDescriptor wake;
  // Messages of at least so many bytes are sent on a second thread, where a channel allows that; SIZE_MAX for none.
  size_t sender_bytes = SIZE_MAX;
};

class Engine {
 public:
  // Args:
  //   mesh: its connections.
  //   names: of the ranks, for messages.
  Engine(Mesh mesh, std::vector<std::string> names);
  // Ends the connections. Operations that are not complete end with an error.
  ~Engine();

  // Starts an operation; any thread may call this, at any time. The operations of the same tag are told apart by their
  // order, which is the same on all ranks. Operations of different tags may start in any order, but if one rank
  // starts X only after Y has ended, all ranks do: a fragment of an operation that has not started keeps all that comes
  // after it from the same rank waiting.
  __attribute__((visibility("default"))) void Start(Request request);

  // Ends all operations with an error, also those of the other ranks, which receive the message. In a process that was
  // forked from the one of the engine, this does nothing.
  void Abort(Code code, const std::string& message);

  // Whether this process was forked from the one that made the engine. The engine has no thread here, and what the
  // thread was changing at that moment is half changed: it can be neither used nor destroyed.
  bool IsOfParent() const { return forks_ != Forks(); }

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Bytes that this rank has sent, headers included.
  uint64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  // Those of them that the second thread has sent.
  uint64_t bytes_handed_over() const { return bytes_handed_over_.load(std::memory_order_relaxed); }

 private:
  struct Peer {
    std::unique_ptr<Channel> channel;
    std::unique_ptr<Lifeline> lifeline;
    // Messages in the order of their operations.
    std::deque<std::pair<Operation*, Outgoing*>> outgoing;
    // The fragment that is being sent.
    Header header;
    size_t header_sent = sizeof(Header);
    const char* from = nullptr;
    size_t left = 0, padding = 0;
    Outgoing* sending = nullptr;
    Operation* sends_for = nullptr;
    // What the second thread sends of it.
    Sending handed_over;
    bool is_handed_over = false;
    // The fragment that is being received.
    Operation* receives_for = nullptr;
    Incoming* receiving = nullptr;
    size_t to_receive = 0, to_skip = 0;
    bool has_header = false;
    Header received;
    bool is_blocked = false;
    // Its channel gives nothing more, for this reason.
    bool is_gone = false;
    std::string why;
    // When it has told why it ends.
    std::optional<Clock::time_point> told_at;
  };

  void Run();
  // One turn of the thread. Returns false after the last one.
  bool Turn();
  // Moves bytes and sums them. Returns whether there were any.
  bool Advance();
  // After a failure: returns whether all other ranks know, or had enough time.
  bool PartFromAll(bool* moved);
  void TakeRequests();
  void Add(Request request);
  uint32_t NextRound(uint64_t key);
  bool SendTo(Peer& peer);
  bool NextFragment(Peer& peer);
  bool TakeHandedOver(Peer& peer);
  void TakeSent(Peer& peer, size_t sent);
  static bool IsBeingSent(const Peer& peer, const char* from, size_t bytes);
  // Wakes the thread if it sleeps.
  void Wake();
  bool ReceiveFrom(int rank);
  bool ReadHeader(int rank);
  bool SumUp(Operation* op, Summation& sum);
  bool SpillOne();
  void CheckDeadlines();
  void CheckHosts();
  // The ranks that an operation waits for.
  std::vector<int> AwaitedBy(const Operation& op) const;
  std::vector<int> AwaitedBy(const Operation& op, bool with_summands) const;
  // Whether summands of a rank are there that wait for those of other ranks.
  bool HasSummands(int rank, const Incoming& part) const;
  bool HasUnsent(const Operation* op) const;
  Operation* Find(int rank, const Header& header) const;
  void CheckMatch(int rank, const Header& header, const Operation* op);
  void Count(Operation* op);
  void Finished(Operation* op);
  void Lose(int rank, const std::string& why);
  // Ends all operations because of a rank that has ended.
  void FailWithout(int rank);
  // Ends all operations if a rank has told why it has ended. Returns whether one has.
  bool FailAsTold();
  void CheckEnded();
  void CheckTold();
  bool Needs(int rank) const;
  bool Part(Peer& peer);
  bool CompleteFinished();
  void Fail(Code code, const std::string& message);
  void FailAll();
  // Whether there are new requests, or bytes, or room for bytes.
  bool HasNews();
  void Sleep();
  // Waits for events of the sockets and of wake_, and returns whether there were any.
  bool TakeEvents(int milliseconds);

  const int rank_, size_, forks_ = Forks();
  const std::vector<std::string> names_;
  const Hosts hosts_;
  const size_t sender_bytes_;
  std::vector<Peer> peers_;
  FileDescriptor wake_, events_;

  std::mutex mutex_;
  std::vector<Request> requests_;       // guarded by mutex_
  Status abort_;                        // guarded by mutex_
  bool is_ending_ = false;              // guarded by mutex_
  bool is_running_ = true;              // guarded by mutex_
  Status failure_;                      // guarded by mutex_
  std::atomic<bool> is_asleep_{false};  // whether Wake has to write to wake_

  std::unordered_map<uint64_t, std::vector<std::unique_ptr<Operation>>> running_;  // by tag
  // How many operations of a tag have started; of the tags that were used last, since TensorFlow makes new ones for each
  // step.
  struct Rounds {
    uint32_t number = 0;
    std::list<uint64_t>::iterator place;
  };
  std::unordered_map<uint64_t, Rounds> rounds_;  // see RoundKey in engine.cc
  std::list<uint64_t> used_;                     // keys of rounds_, the one that was used last at the end
  std::vector<std::pair<Operation*, Summation*>> sums_;
  Operation* finished_ = nullptr;  // a list of operations of running_ that have nothing unfinished
  Status failing_;
  Clock::time_point parting_until_;
  Clock::time_point deadlines_checked_, hosts_checked_;
  std::atomic<uint64_t> bytes_sent_{0}, bytes_handed_over_{0};
  std::unique_ptr<Sender> sender_;  // null if no message is handed over
  std::thread thread_;
};

}  // namespace tfdist
