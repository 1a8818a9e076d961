#include "communicators.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace tfdist {
namespace {

std::mutex mutex;
// Never destroyed: threads of TensorFlow may use a communicator until the process ends.
auto& engines = *new std::map<int64_t, std::shared_ptr<Engine>>;
auto& called_when_removed = *new std::vector<std::function<void(int64_t)>>;
int64_t next = 1;

}  // namespace

int64_t AddCommunicator(std::shared_ptr<Engine> engine) {
  std::lock_guard<std::mutex> lock(mutex);
  engines[next] = std::move(engine);
  return next++;
}

std::shared_ptr<Engine> FindCommunicator(int64_t number) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = engines.find(number);
  return found == engines.end() ? nullptr : found->second;
}

void RemoveCommunicator(int64_t number) {
  std::shared_ptr<Engine> ended;
  std::vector<std::function<void(int64_t)>> functions;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = engines.find(number);
    if (found == engines.end()) return;
    ended = std::move(found->second);
    engines.erase(found);
    functions = called_when_removed;
  }
  ended.reset();
  for (auto& function : functions) function(number);
}

void ReplaceCommunicator(int64_t number, int64_t by) {
  // Ends after the lock: it waits for its thread.
  std::shared_ptr<Engine> ended;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = engines.find(by);
  if (found == engines.end()) return;
  ended = std::move(engines[number]);
  engines[number] = std::move(found->second);
  engines.erase(found);
}

void CallWhenRemoved(std::function<void(int64_t)> function) {
  std::lock_guard<std::mutex> lock(mutex);
  called_when_removed.push_back(std::move(function));
}

}  // namespace tfdist
