#include "communicators.h"

#include <map>
#include <mutex>
#include <utility>

namespace tfdist {
namespace {

std::mutex mutex;
// Never destroyed: threads of TensorFlow may use a communicator until the process ends.
auto& engines = *new std::map<int64_t, std::shared_ptr<Engine>>;
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
  std::lock_guard<std::mutex> lock(mutex);
  auto found = engines.find(number);
  if (found == engines.end()) return;
  ended = std::move(found->second);
  engines.erase(found);
}

}  // namespace tfdist
