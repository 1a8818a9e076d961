#include "operation.h"

#include <cstring>
#include <numeric>
#include <utility>

namespace tfdist {
namespace {

// Arrays up to this size are sent whole to every rank, which saves the time of a second message.
constexpr size_t kWhole = 8 << 10;
// Larger arrays are added up within each host first, which saves bytes between the hosts, and takes more time for each
// message.
constexpr size_t kWithinHosts = 64 << 10;
// A message of a part has a phase of its own for each host, and a header has one byte for it.
constexpr size_t kMostHosts = 200;

class Planner {
 public:
  Planner(Request request, int rank, int size, const Hosts& hosts) : rank_(rank), size_(size), hosts_(hosts) {
    op_->request = std::move(request);
    op_->outgoing.resize(size);
    op_->incoming.resize(size);
    width_ = SizeOf(op_->request.dtype);
    bytes_ = op_->request.elements * width_;
  }

  std::unique_ptr<Operation> Finish() {
    for (int peer = 0; peer < size_; ++peer) {
      op_->unfinished += static_cast<int>(op_->outgoing[peer].size() + op_->incoming[peer].size());
    }
    op_->unfinished += static_cast<int>(op_->sums.size());
    return std::move(op_);
  }

  // The sum of everything on every rank: each rank sums one part, and sends the sum to the others.
  void AllReduce() {
    if (bytes_ > kWithinHosts && hosts_.size() > 1 && hosts_.size() <= kMostHosts) return AllReduceOverHosts();
    if (bytes_ <= kWhole) {
      Sum(0, Everyone(), op_->request.in, {}, op_->request.out, bytes_);
      op_->sends_first = op_->request.in == op_->request.out;
      for (int peer = 0; peer < size_; ++peer) {
        Send(peer, 0, op_->request.in, bytes_);
        ReceiveSummand(peer, 0);
      }
      return;
    }
    ScatterSummands(op_->request.out + Offset(rank_));
    for (int peer = 0; peer < size_; ++peer) {
      Send(peer, 1, op_->request.out + Offset(rank_), Bytes(rank_), {&op_->sums[0].ready});
      Copy(peer, 1, op_->request.out + Offset(peer), Bytes(peer));
    }
  }

  // The ranks of each host share the array: each of them sums one part over its host. Then it sums a part of this part
  // over the ranks of the same place on the other hosts, so that each host sends the array about once or twice,
  // however many ranks it has.
  void AllReduceOverHosts() {
    const int hosts = static_cast<int>(hosts_.size()), places = static_cast<int>(hosts_[0].size());
    int host = 0, place = 0;
    for (int h = 0; h < hosts; ++h) {
      for (int p = 0; p < places; ++p) {
        if (hosts_[h][p] == rank_) host = h, place = p;
      }
    }
    // The bytes from the first to the last element of the part of a place, or of a host within it.
    struct Range {
      size_t begin, bytes;
    };
    auto of_place = [&](int p) {
      Part part = PartOf(op_->request.elements, p, places);
      return Range{part.begin * width_, (part.end - part.begin) * width_};
    };
    auto of_host = [&](int p, int h) {
      Range all = of_place(p);
      Part part = PartOf(all.bytes / width_, h, hosts);
      return Range{all.begin + part.begin * width_, (part.end - part.begin) * width_};
    };
    const char* in = op_->request.in;
    char* out = op_->request.out;
    const Range own = of_place(place), last = of_host(place, host);
    std::vector<int> same_place;
    for (int h = 0; h < hosts; ++h) same_place.push_back(hosts_[h][place]);
    // Their addresses are kept.
    op_->sums.reserve(2);
    for (int peer : same_place) op_->incoming[peer].reserve(2);

    Sum(0, hosts_[host], in + own.begin, {}, out + own.begin, own.bytes);
    const size_t* within = &op_->sums[0].ready;
    Sum(1, same_place, out + last.begin, {within, last.begin - own.begin}, out + last.begin, last.bytes);
    const size_t* total = &op_->sums[1].ready;
    for (int p = 0; p < places; ++p) {
      Send(hosts_[host][p], 0, in + of_place(p).begin, of_place(p).bytes);
      ReceiveSummand(hosts_[host][p], 0);
    }
    for (int h = 0; h < hosts; ++h) {
      Range part = of_host(place, h);
      Send(same_place[h], 1, out + part.begin, part.bytes, {within, part.begin - own.begin});
      ReceiveSummand(same_place[h], 1);
      Send(same_place[h], 2, out + last.begin, last.bytes, {total});
      Copy(same_place[h], 2, out + part.begin, part.bytes);
    }
    for (int h = 0; h < hosts; ++h) {
      Range part = of_host(place, h);
      const size_t* ready = h == host ? total : &op_->Find(same_place[h], 2)->received;
      for (int p = 0; p < places; ++p) {
        Send(hosts_[host][p], 3 + h, out + part.begin, part.bytes, {ready});
        Copy(hosts_[host][p], 3 + h, out + of_host(p, h).begin, of_host(p, h).bytes);
      }
    }
  }

  void ReduceScatter() { ScatterSummands(op_->request.out); }

  void AllGather() {
    if (bytes_) std::memcpy(op_->request.out + static_cast<size_t>(rank_) * bytes_, op_->request.in, bytes_);
    for (int peer = 0; peer < size_; ++peer) {
      Send(peer, 0, op_->request.in, bytes_);
      Copy(peer, 0, op_->request.out + peer * bytes_, bytes_);
    }
  }

  // Each rank gets one part from the root, and passes it on, so that the root sends the array about once.
  void Broadcast() {
    int root = op_->request.peer;
    char* out = op_->request.out;
    if (rank_ == root) {
      if (out != op_->request.in && bytes_) std::memmove(out, op_->request.in, bytes_);
      for (int peer = 0; peer < size_; ++peer) {
        Send(peer, 0, out + Offset(peer), Bytes(peer));
        Send(peer, 1, out + Offset(root), Bytes(root));
      }
      return;
    }
    Copy(root, 0, out + Offset(rank_), Bytes(rank_), true);
    Copy(root, 1, out + Offset(root), Bytes(root));
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == root) continue;
      Send(peer, 1, out + Offset(rank_), Bytes(rank_), {&op_->passed_on});
      Copy(peer, 1, out + Offset(peer), Bytes(peer));
    }
  }

  void PointToPoint(bool sends) {
    if (sends) {
      Send(op_->request.peer, 0, op_->request.in, bytes_);
    } else {
      Copy(op_->request.peer, 0, op_->request.out, bytes_);
    }
  }

 private:
  void ScatterSummands(char* sum) {
    Sum(0, Everyone(), op_->request.in + Offset(rank_), {}, sum, Bytes(rank_));
    for (int peer = 0; peer < size_; ++peer) {
      Send(peer, 0, op_->request.in + Offset(peer), Bytes(peer));
      ReceiveSummand(peer, 0);
    }
  }

  std::vector<int> Everyone() const {
    std::vector<int> ranks(static_cast<size_t>(size_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }

  void Sum(int phase, std::vector<int> ranks, const char* own, Ready own_ready, char* to, size_t bytes) {
    op_->sums.reserve(1);
    op_->sums.push_back({phase, std::move(ranks), own, own_ready, to, bytes});
  }

  void Send(int peer, int phase, const char* from, size_t bytes, Ready ready = {}) {
    if (peer != rank_) op_->outgoing[peer].push_back({phase, from, bytes, ready});
  }

  void Copy(int peer, int phase, char* to, size_t bytes, bool is_own = false) {
    if (peer != rank_) op_->incoming[peer].push_back({phase, nullptr, to, bytes, is_own});
  }

  // Receives summands of the sum with this phase.
  void ReceiveSummand(int peer, int phase) {
    if (peer == rank_) return;
    const Summation& sum = op_->sums[static_cast<size_t>(phase)];
    op_->incoming[peer].push_back({phase, &sum, nullptr, sum.bytes});
  }

  size_t Offset(int rank) const { return PartOf(op_->request.elements, rank, size_).begin * width_; }
  size_t Bytes(int rank) const {
    Part part = PartOf(op_->request.elements, rank, size_);
    return (part.end - part.begin) * width_;
  }

  std::unique_ptr<Operation> op_ = std::make_unique<Operation>();
  int rank_, size_;
  const Hosts& hosts_;
  size_t width_, bytes_;
};

}  // namespace

Part PartOf(size_t elements, int rank, int size) {
  size_t each = elements / size, more = elements % size, index = static_cast<size_t>(rank);
  size_t begin = index * each + (index < more ? index : more);
  return {begin, begin + each + (index < more)};
}

std::unique_ptr<Operation> Plan(Request request, int rank, int size, const Hosts& hosts) {
  Kind kind = request.kind;
  Planner planner(std::move(request), rank, size, hosts);
  switch (kind) {
    case Kind::kAllReduce:
      planner.AllReduce();
      break;
    case Kind::kReduceScatter:
      planner.ReduceScatter();
      break;
    case Kind::kAllGather:
      planner.AllGather();
      break;
    case Kind::kBroadcast:
      planner.Broadcast();
      break;
    case Kind::kSend:
    case Kind::kReceive:
      planner.PointToPoint(kind == Kind::kSend);
      break;
  }
  return planner.Finish();
}

}  // namespace tfdist
