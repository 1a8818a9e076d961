#include "c_api.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "communicators.h"
#include "engine.h"
#include "mesh.h"
#include "watch.h"

namespace {

struct Waited {
  bool is_done = false;
  tfdist::Status status;
};

std::mutex mutex;
// Never destroyed: threads may wait until the process ends.
auto& changed = *new std::condition_variable;
auto& waited = *new std::map<int64_t, Waited>;
int64_t next_operation = 1;

void Write(const std::string& text, char* to, int size) {
  if (to == nullptr || size < 1) return;
  size_t bytes = std::min(text.size(), static_cast<size_t>(size - 1));
  std::memcpy(to, text.data(), bytes);
  to[bytes] = '\0';
}

// A forked process leaves the engine of its parent as it is.
void End(tfdist::Engine* engine) {
  if (!engine->IsOfParent()) delete engine;
}

}  // namespace

void* tfdist_listen(const char* host, int shares_memory, const char* id, char* error, int error_size) {
  try {
    return new tfdist::Listener(host, shares_memory != 0, id);
  } catch (const std::exception& failure) {
    Write(failure.what(), error, error_size);
    return nullptr;
  }
}

void tfdist_address(void* listener, char* text, int text_size) {
  Write(static_cast<tfdist::Listener*>(listener)->address().ToString(), text, text_size);
}

void tfdist_stop_listening(void* listener) { delete static_cast<tfdist::Listener*>(listener); }

int64_t tfdist_connect(void* listener, int rank, const char* addresses, double timeout_seconds, char* error,
                       int error_size) {
  std::unique_ptr<tfdist::Listener> owned(static_cast<tfdist::Listener*>(listener));
  try {
    std::vector<tfdist::Address> parsed;
    std::istringstream lines(addresses);
    for (std::string line; std::getline(lines, line);) parsed.push_back(tfdist::Address::FromString(line));
    std::vector<std::string> names;
    for (auto& address : parsed) {
      std::replace(address.name.begin(), address.name.end(), '_', ' ');
      names.push_back(address.name);
    }
    auto made = std::make_unique<tfdist::Engine>(owned->Connect(rank, parsed, timeout_seconds), std::move(names));
    std::shared_ptr<tfdist::Engine> engine(made.release(), End);
    return tfdist::AddCommunicator(std::move(engine));
  } catch (const std::exception& failure) {
    Write(failure.what(), error, error_size);
    return 0;
  }
}

void tfdist_replace(int64_t communicator, int64_t by) { tfdist::ReplaceCommunicator(communicator, by); }

void tfdist_close(int64_t communicator) { tfdist::RemoveCommunicator(communicator); }

int tfdist_abort(int64_t communicator, int code, const char* message) {
  auto engine = tfdist::FindCommunicator(communicator);
  if (engine) engine->Abort(static_cast<tfdist::Code>(code), message);
  return engine != nullptr;
}

uint64_t tfdist_bytes_sent(int64_t communicator) {
  auto engine = tfdist::FindCommunicator(communicator);
  return engine ? engine->bytes_sent() : 0;
}

uint64_t tfdist_bytes_handed_over(int64_t communicator) {
  auto engine = tfdist::FindCommunicator(communicator);
  return engine ? engine->bytes_handed_over() : 0;
}

int64_t tfdist_start(int64_t communicator, int kind, int dtype, uint64_t elements, const void* in, void* out, int peer,
                     uint64_t tag, double timeout_seconds) {
  auto engine = tfdist::FindCommunicator(communicator);
  if (!engine) return 0;
  int64_t number;
  {
    std::lock_guard<std::mutex> lock(mutex);
    number = next_operation++;
    waited[number];
  }
  tfdist::Request request;
  request.kind = static_cast<tfdist::Kind>(kind);
  request.dtype = static_cast<tfdist::DType>(dtype);
  request.elements = elements;
  request.in = static_cast<const char*>(in);
  request.out = static_cast<char*>(out);
  request.peer = peer;
  request.tag = tag;
  request.timeout_seconds = timeout_seconds;
  request.done = [number](const tfdist::Status& status) {
    std::lock_guard<std::mutex> lock(mutex);
    auto& item = waited[number];
    item.is_done = true;
    item.status = status;
    changed.notify_all();
  };
  engine->Start(std::move(request));
  return number;
}

int tfdist_wait(int64_t operation, char* error, int error_size) {
  std::unique_lock<std::mutex> lock(mutex);
  auto found = waited.find(operation);
  if (found == waited.end()) {
    Write("there is no such operation", error, error_size);
    return static_cast<int>(tfdist::Code::kInvalidArgument);
  }
  lock.unlock();
  tfdist::WatchFor([&] {
    std::lock_guard<std::mutex> held(mutex);
    return found->second.is_done;
  });
  lock.lock();
  changed.wait(lock, [&] { return found->second.is_done; });
  tfdist::Status status = std::move(found->second.status);
  waited.erase(found);
  Write(status.message, error, error_size);
  return static_cast<int>(status.code);
}
