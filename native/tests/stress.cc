// Random operations of many ranks, each compared with what one thread computes; ranks that are killed.
//
//   stress threads SUMS RANKS SEED [tcp|hosts]   all ranks in one process, for ThreadSanitizer
//   stress kill TIMES RANKS SEED [tcp|hosts]     each time one of several processes is killed at a random moment;
//                                                every other time, one of the others never starts its first operation
//   stress sums ELEMENTS INPUTS SEED             sums of every dtype at every address, compared with sums of integers
//
// "tcp": without shared memory; "hosts": with shared memory between even ranks and between odd ranks, as on two hosts.
//
// Every rank draws the same operations from the seed, and starts up to eight of them at a time, in an order of its own.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../cpp/engine.h"
#include "../cpp/mesh.h"

using namespace tfdist;

namespace {

const DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kInt32,   DType::kInt64,    DType::kInt8,   DType::kUint8,
                        DType::kInt16,   DType::kUint16,  DType::kFloat16, DType::kBfloat16, DType::kUint32, DType::kUint64};
const Kind kKinds[] = {Kind::kAllReduce, Kind::kAllReduce, Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather,
                       Kind::kBroadcast, Kind::kSend};

struct Drawn {
  Kind kind;
  DType dtype;
  size_t elements;
  int from, to;
  bool in_place;
};

Drawn Draw(std::mt19937_64& random, int ranks) {
  Drawn drawn;
  drawn.kind = kKinds[random() % 7];
  drawn.dtype = kTypes[random() % 12];
  // Sizes of all magnitudes, and 0.
  size_t bits = random() % 19;
  drawn.elements = random() % ((size_t{1} << bits) + 1);
  drawn.from = static_cast<int>(random() % static_cast<unsigned>(ranks));
  drawn.to = (drawn.from + 1) % ranks;
  drawn.in_place = random() % 2;
  return drawn;
}

// Writes a whole number from 0 to 255, which every dtype but int8 has exactly; int8 has it up to 127.
void Put(char* to, DType dtype, int value) {
  auto put = [&](auto number) { std::memcpy(to, &number, sizeof number); };
  switch (dtype) {
    case DType::kFloat32: put(static_cast<float>(value)); break;
    case DType::kFloat64: put(static_cast<double>(value)); break;
    case DType::kBfloat16: {
      float number = static_cast<float>(value);
      uint32_t word;
      std::memcpy(&word, &number, 4);
      put(static_cast<uint16_t>(word >> 16));
      break;
    }
    case DType::kFloat16: {
      int exponent = 0;
      while (value >> (exponent + 1)) ++exponent;
      put(static_cast<uint16_t>(value ? ((exponent + 15) << 10) + ((value << 10 >> exponent) - 1024) : 0));
      break;
    }
    default:
      switch (SizeOf(dtype)) {
        case 1: put(static_cast<int8_t>(value)); break;
        case 2: put(static_cast<int16_t>(value)); break;
        case 4: put(static_cast<int32_t>(value)); break;
        default: put(static_cast<int64_t>(value));
      }
  }
}

const size_t kPeriod = 11;

int Number(size_t i, uint64_t seed) { return static_cast<int>((i * 7 + seed * 13) % kPeriod); }

// The elements of a rank: small numbers, whose sums are exact in every dtype. One period is written element by element,
// and then copied: under ThreadSanitizer a rank would otherwise spend more than a third of its time here.
void Fill(std::vector<char>& bytes, DType dtype, size_t elements, uint64_t seed) {
  const size_t width = SizeOf(dtype);
  bytes.resize(elements * width);
  size_t filled = std::min(elements, kPeriod);
  for (size_t i = 0; i < filled; ++i) Put(bytes.data() + i * width, dtype, Number(i, seed));
  while (filled < elements) {
    size_t more = std::min(filled, elements - filled);
    std::memcpy(bytes.data() + filled * width, bytes.data(), more * width);
    filled += more;
  }
}

struct Waiter {
  std::mutex mutex;
  std::condition_variable changed;
  int running = 0;
  Status failure;
  std::vector<std::string> wrong;
};

// Memory of the processes whose ranks are killed: when the last one was, and the longest time after that, or after its
// own start if that was later, until an operation has failed. What a rank takes to fill its arrays is not in it.
struct Kills {
  std::atomic<int64_t> killed{0}, latest{0};
};
Kills* kills = nullptr;

int64_t Nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

void Failed(Clock::time_point started) {
  if (!kills) return;
  int64_t took = Nanoseconds(Clock::now()) - std::max(kills->killed.load(), Nanoseconds(started));
  for (int64_t latest = kills->latest; took > latest && !kills->latest.compare_exchange_weak(latest, took);) {
  }
}

struct Job {
  Drawn drawn;
  uint64_t number;
  Clock::time_point started;
  std::vector<char> in, out, expected;
};

std::vector<char> SumOf(const Drawn& drawn, uint64_t number, int ranks) {
  std::vector<std::vector<char>> all(static_cast<size_t>(ranks));
  std::vector<const char*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    Fill(all[static_cast<size_t>(rank)], drawn.dtype, drawn.elements, number * 100 + static_cast<uint64_t>(rank));
    pointers.push_back(all[static_cast<size_t>(rank)].data());
  }
  std::vector<char> sum(drawn.elements * SizeOf(drawn.dtype));
  Sum(drawn.dtype, pointers.data(), ranks, sum.data(), drawn.elements);
  return sum;
}

// Starts one operation. Returns false if this rank has no part in it.
bool StartJob(Engine& engine, const std::shared_ptr<Job>& job, Waiter& waiter) {
  const Drawn& drawn = job->drawn;
  const int rank = engine.rank(), ranks = engine.size();
  const size_t width = SizeOf(drawn.dtype), bytes = drawn.elements * width;
  Request request;
  request.kind = drawn.kind;
  request.dtype = drawn.dtype;
  request.elements = drawn.elements;
  request.tag = drawn.kind == Kind::kSend ? 5 : job->number;
  request.timeout_seconds = 20;
  auto own = job->number * 100 + static_cast<uint64_t>(rank);
  switch (drawn.kind) {
    case Kind::kAllReduce:
      Fill(job->in, drawn.dtype, drawn.elements, own);
      job->out.resize(bytes);
      job->expected = SumOf(drawn, job->number, ranks);
      break;
    case Kind::kReduceScatter: {
      Fill(job->in, drawn.dtype, drawn.elements, own);
      Part part = PartOf(drawn.elements, rank, ranks);
      auto sum = SumOf(drawn, job->number, ranks);
      job->out.resize((part.end - part.begin) * width);
      job->expected.assign(sum.begin() + static_cast<ptrdiff_t>(part.begin * width),
                           sum.begin() + static_cast<ptrdiff_t>(part.end * width));
      break;
    }
    case Kind::kAllGather:
      Fill(job->in, drawn.dtype, drawn.elements, own);
      job->out.resize(bytes * static_cast<size_t>(ranks));
      for (int other = 0; other < ranks; ++other) {
        std::vector<char> part;
        Fill(part, drawn.dtype, drawn.elements, job->number * 100 + static_cast<uint64_t>(other));
        job->expected.insert(job->expected.end(), part.begin(), part.end());
      }
      break;
    case Kind::kBroadcast:
      request.peer = drawn.from;
      Fill(job->in, drawn.dtype, drawn.elements, own);
      job->out.resize(bytes);
      Fill(job->expected, drawn.dtype, drawn.elements, job->number * 100 + static_cast<uint64_t>(drawn.from));
      break;
    case Kind::kSend:
    case Kind::kReceive:
      if (rank == drawn.from) {
        request.peer = drawn.to;
        Fill(job->in, drawn.dtype, drawn.elements, own);
      } else if (rank == drawn.to) {
        request.kind = Kind::kReceive;
        request.peer = drawn.from;
        job->out.resize(bytes);
        Fill(job->expected, drawn.dtype, drawn.elements, job->number * 100 + static_cast<uint64_t>(drawn.from));
      } else {
        return false;
      }
  }
  bool in_place = drawn.in_place && (drawn.kind == Kind::kAllReduce || drawn.kind == Kind::kBroadcast);
  if (in_place) job->out = job->in;
  request.in = in_place ? job->out.data() : job->in.data();
  request.out = job->out.data();
  request.done = [job, &waiter](const Status& status) {
    std::lock_guard<std::mutex> lock(waiter.mutex);
    if (status.code != Code::kOk) {
      Failed(job->started);
      waiter.failure = status;
    } else if (job->out != job->expected) {
      waiter.wrong.push_back("operation " + std::to_string(job->number) + " of kind " +
                             std::to_string(static_cast<int>(job->drawn.kind)) + ", dtype " +
                             std::to_string(static_cast<int>(job->drawn.dtype)) + ", " +
                             std::to_string(job->drawn.elements) + " elements");
    }
    --waiter.running;
    waiter.changed.notify_all();
  };
  {
    std::lock_guard<std::mutex> lock(waiter.mutex);
    ++waiter.running;
  }
  job->started = Clock::now();
  engine.Start(std::move(request));
  return true;
}

// Runs operations until there are enough of them, or one fails. Returns the failure.
Status RunRank(Engine& engine, long operations, uint64_t seed) {
  std::mt19937_64 random(seed), own(seed * 1000 + static_cast<uint64_t>(engine.rank()));
  Waiter waiter;
  for (long done = 0; done < operations;) {
    std::vector<std::shared_ptr<Job>> jobs;
    size_t together = 1 + random() % 8;
    for (size_t i = 0; i < together; ++i) {
      auto job = std::make_shared<Job>();
      job->drawn = Draw(random, engine.size());
      job->number = static_cast<uint64_t>(++done) + 10;
      jobs.push_back(job);
    }
    // Operations of all ranks start in any order. Messages of one pair keep theirs.
    for (size_t i = jobs.size(); i > 1; --i) {
      size_t other = own() % i;
      if (jobs[i - 1]->drawn.kind != Kind::kSend && jobs[other]->drawn.kind != Kind::kSend) std::swap(jobs[i - 1], jobs[other]);
    }
    for (auto& job : jobs) StartJob(engine, job, waiter);
    std::unique_lock<std::mutex> lock(waiter.mutex);
    waiter.changed.wait(lock, [&] { return waiter.running == 0; });
    if (waiter.failure.code != Code::kOk) return waiter.failure;
    if (!waiter.wrong.empty()) {
      for (auto& text : waiter.wrong) std::fprintf(stderr, "rank %d: wrong: %s\n", engine.rank(), text.c_str());
      std::exit(3);
    }
  }
  return {};
}

std::vector<std::string> NamesOf(int ranks) {
  std::vector<std::string> names;
  for (int rank = 0; rank < ranks; ++rank) names.push_back("rank " + std::to_string(rank));
  return names;
}

std::vector<std::unique_ptr<Listener>> Listen(int ranks, const std::string& channel, std::vector<Address>& addresses) {
  std::vector<std::unique_ptr<Listener>> listeners;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners.push_back(std::make_unique<Listener>("127.0.0.1", channel != "tcp", "stress"));
    addresses.push_back(listeners.back()->address());
    if (channel == "hosts") addresses.back().machine += rank % 2 ? "-odd" : "-even";
  }
  return listeners;
}

int Threads(long operations, int ranks, uint64_t seed, const std::string& channel) {
  std::vector<Address> addresses;
  auto listeners = Listen(ranks, channel, addresses);
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Engine engine(listeners[static_cast<size_t>(rank)]->Connect(rank, addresses, 30), NamesOf(ranks));
      Status status = RunRank(engine, operations, seed);
      if (status.code != Code::kOk) {
        std::fprintf(stderr, "rank %d: %s\n", rank, status.message.c_str());
        ++failed;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("%ld operations, %d ranks, %s: %s\n", operations, ranks, channel.c_str(), failed ? "failed" : "right");
  return failed ? 1 : 0;
}

// Sums arrays of random sizes with all ranks until a sum fails. Returns the failure.
Status SumAlways(Engine& engine, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t number = 11;; ++number) {
    auto job = std::make_shared<Job>();
    // Large arrays fill the channels. Of smaller ones all that a rank sends is in the channels: nobody learns of its end
    // by sending to it. The smallest are sent whole to every rank: if they have arrived, nothing more is expected of the
    // one that is killed.
    const size_t sizes[] = {1 << 11, 1 << 11, 1 << 17, 1 << 23};
    const size_t most = sizes[random() % 4];
    job->drawn = {Kind::kAllReduce, DType::kFloat32, 1 + random() % most, 0, 0, false};
    job->number = number;
    Waiter waiter;
    StartJob(engine, job, waiter);
    std::unique_lock<std::mutex> lock(waiter.mutex);
    waiter.changed.wait(lock, [&] { return waiter.running == 0; });
    if (waiter.failure.code != Code::kOk) return waiter.failure;
  }
}

// One process for each rank; the parent kills one of them, and each other one has to name it in time, even if the
// summands of the one that was killed wait for those of a rank that starts no operation.
int Kill(long times, int ranks, uint64_t seed, const std::string& channel) {
  std::mt19937_64 random(seed);
  void* memory = mmap(nullptr, sizeof(Kills), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 2;
  kills = new (memory) Kills;
  for (long time = 0; time < times; ++time) {
    std::vector<Address> addresses;
    auto listeners = Listen(ranks, channel, addresses);
    int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    int straggler = time % 2 && ranks > 2 ? (victim + 1) % ranks : -1;
    std::string name = "rank " + std::to_string(victim);
    int ready[2];
    if (pipe(ready)) return 2;
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
      pid_t child = fork();
      if (child == 0) {
        auto listener = std::move(listeners[static_cast<size_t>(rank)]);
        listeners.clear();
        Engine engine(listener->Connect(rank, addresses, 30), NamesOf(ranks));
        if (write(ready[1], "r", 1) != 1) std::_Exit(2);
        const uint64_t drawn_from = seed + static_cast<uint64_t>(time);
        if (rank == straggler) pause();
        Status status = straggler < 0 ? RunRank(engine, 1L << 40, drawn_from) : SumAlways(engine, drawn_from);
        bool is_named = status.code == Code::kUnavailable && status.message.find("lost " + name + ":") == 0;
        if (!is_named) std::fprintf(stderr, "rank %d: expected that %s is named, received '%s'\n", rank, name.c_str(), status.message.c_str());
        std::_Exit(is_named ? 0 : 4);
      }
      children.push_back(child);
    }
    listeners.clear();
    char byte;
    for (int rank = 0; rank < ranks; ++rank) {
      if (read(ready[0], &byte, 1) != 1) return 2;
    }
    close(ready[0]);
    close(ready[1]);
    usleep(static_cast<useconds_t>(random() % 60000));
    kills->killed = Nanoseconds(Clock::now());
    kill(children[static_cast<size_t>(victim)], SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == straggler) continue;
      int status;
      waitpid(children[static_cast<size_t>(rank)], &status, 0);
      if (rank == victim) continue;
      double seconds = static_cast<double>(kills->latest) / 1e9;
      if (status != 0 || seconds > 10) {
        std::fprintf(stderr, "time %ld: rank %d ended with %d, the error came after %.2f s\n", time, rank, status, seconds);
        for (pid_t child : children) kill(child, SIGKILL);
        return 1;
      }
    }
    if (straggler >= 0) {
      kill(children[static_cast<size_t>(straggler)], SIGKILL);
      waitpid(children[static_cast<size_t>(straggler)], nullptr, 0);
    }
  }
  std::printf("%ld ranks of %d killed, %s: each named by all others, within %.3f s\n", times, ranks, channel.c_str(),
              static_cast<double>(kills->latest) / 1e9);
  return 0;
}

// Every array begins at an address of its own, each of them at every distance from an aligned one.
int Sums(size_t elements, int inputs, uint64_t seed) {
  if (inputs < 1 || inputs > 12) {
    std::fprintf(stderr, "expected 1 to 12 inputs, whose sums int8 has, received %d\n", inputs);
    return 2;
  }
  long sums = 0;
  for (DType dtype : kTypes) {
    const size_t width = SizeOf(dtype), bytes = elements * width;
    std::vector<char> expected(bytes);
    for (size_t i = 0; i < elements; ++i) {
      int sum = 0;
      for (int j = 0; j < inputs; ++j) sum += Number(i, seed + static_cast<uint64_t>(j));
      Put(expected.data() + i * width, dtype, sum);
    }
    for (size_t shift = 0; shift < 16; ++shift) {
      std::vector<std::vector<char>> arrays;
      std::vector<const char*> in;
      for (int j = 0; j < inputs; ++j) {
        std::vector<char> values;
        Fill(values, dtype, elements, seed + static_cast<uint64_t>(j));
        size_t begin = (shift + static_cast<size_t>(j) * 5) % 16;
        arrays.emplace_back(begin + bytes);
        std::copy(values.begin(), values.end(), arrays.back().begin() + static_cast<ptrdiff_t>(begin));
        in.push_back(arrays.back().data() + begin);
      }
      // The bytes around the output stay as they are.
      std::vector<char> out(bytes + 32, 'x');
      size_t begin = (shift * 3 + 1) % 16;
      Sum(dtype, in.data(), inputs, out.data() + begin, elements);
      bool is_right = std::equal(expected.begin(), expected.end(), out.begin() + static_cast<ptrdiff_t>(begin));
      for (size_t i = 0; i < out.size(); ++i) is_right &= (i >= begin && i < begin + bytes) || out[i] == 'x';
      if (!is_right) {
        std::fprintf(stderr, "wrong sum: dtype %d, %d inputs, shift %zu\n", static_cast<int>(dtype), inputs, shift);
        return 1;
      }
      ++sums;
    }
  }
  std::printf("%ld sums of %d arrays of %zu elements: right\n", sums, inputs, elements);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) {
    std::fprintf(stderr, "stress threads|kill|sums NUMBER RANKS SEED [tcp|hosts]\n");
    return 2;
  }
  long number = std::atol(arguments[2]);
  int ranks = std::atoi(arguments[3]);
  uint64_t seed = std::strtoull(arguments[4], nullptr, 10);
  std::string channel = count < 6 ? "shared memory" : arguments[5];
  if (std::strcmp(arguments[1], "sums") == 0) return Sums(static_cast<size_t>(number), ranks, seed);
  if (std::strcmp(arguments[1], "kill") == 0) return Kill(number, ranks, seed, channel);
  return Threads(number, ranks, seed, channel);
}
