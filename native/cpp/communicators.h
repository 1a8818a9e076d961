// The communicators of this process, by number.
#pragma once

#include <cstdint>
#include <memory>

#include "engine.h"

namespace tfdist {

#define TFDIST_SHARED __attribute__((visibility("default")))

int64_t AddCommunicator(std::shared_ptr<Engine> engine);
// Null if there is none of this number any more.
TFDIST_SHARED std::shared_ptr<Engine> FindCommunicator(int64_t number);
void RemoveCommunicator(int64_t number);

}  // namespace tfdist
