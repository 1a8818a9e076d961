#include "operation.h"

#include <cstring>
#include <utility>

namespace tfdist {
namespace {

// Arrays up to this size are sent whole to every rank, which saves the time of a second message.
constexpr size_t kWhole = 8 << 10;

class Planner {
 public:
  Planner(Request request, int rank, int size) : rank_(rank), size_(size) {
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
    op_->unfinished += op_->sum != nullptr;
    return std::move(op_);
  }

  // The sum of everything on every rank: each rank sums one part, and sends the sum to the others.
  void AllReduce() {
    if (bytes_ <= kWhole) {
      Sum({0, op_->request.elements}, op_->request.out);
      op_->sends_first = op_->request.in == op_->request.out;
      for (int peer = 0; peer < size_; ++peer) {
        Send(peer, 0, op_->request.in, bytes_);
        ReceiveSummand(peer);
      }
      return;
    }
    ScatterSummands(op_->request.out + Offset(rank_));
    for (int peer = 0; peer < size_; ++peer) {
      Send(peer, 1, op_->request.out + Offset(rank_), Bytes(rank_), &op_->ready);
      Copy(peer, 1, op_->request.out + Offset(peer), Bytes(peer));
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
      Send(peer, 1, out + Offset(rank_), Bytes(rank_), &op_->ready);
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
    Sum(PartOf(op_->request.elements, rank_, size_), sum);
    for (int peer = 0; peer < size_; ++peer) {
      Send(peer, 0, op_->request.in + Offset(peer), Bytes(peer));
      ReceiveSummand(peer);
    }
  }

  void Sum(Part part, char* to) {
    op_->own = op_->request.in + part.begin * width_;
    op_->sum = to;
    op_->sum_bytes = (part.end - part.begin) * width_;
  }

  void Send(int peer, int phase, const char* from, size_t bytes, const size_t* ready = nullptr) {
    if (peer != rank_) op_->outgoing[peer].push_back({phase, from, bytes, ready});
  }

  void Copy(int peer, int phase, char* to, size_t bytes, bool is_own = false) {
    if (peer != rank_) op_->incoming[peer].push_back({phase, false, to, bytes, is_own});
  }

  void ReceiveSummand(int peer) {
    if (peer != rank_) op_->incoming[peer].push_back({0, true, nullptr, op_->sum_bytes});
  }

  size_t Offset(int rank) const { return PartOf(op_->request.elements, rank, size_).begin * width_; }
  size_t Bytes(int rank) const {
    Part part = PartOf(op_->request.elements, rank, size_);
    return (part.end - part.begin) * width_;
  }

  std::unique_ptr<Operation> op_ = std::make_unique<Operation>();
  int rank_, size_;
  size_t width_, bytes_;
};

}  // namespace

Part PartOf(size_t elements, int rank, int size) {
  size_t each = elements / size, more = elements % size, index = static_cast<size_t>(rank);
  size_t begin = index * each + (index < more ? index : more);
  return {begin, begin + each + (index < more)};
}

std::unique_ptr<Operation> Plan(Request request, int rank, int size) {
  Kind kind = request.kind;
  Planner planner(std::move(request), rank, size);
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
