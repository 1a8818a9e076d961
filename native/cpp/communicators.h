// The communicators of this process, by number.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "engine.h"

namespace tfdist {

#define TFDIST_SHARED __attribute__((visibility("default")))

int64_t AddCommunicator(std::shared_ptr<Engine> engine);
// Null if there is none of this number any more.
TFDIST_SHARED std::shared_ptr<Engine> FindCommunicator(int64_t number);
// Ends its connections, unless an operation is being started, which then ends them.
void RemoveCommunicator(int64_t number);
// Lets a number mean the connections of another communicator, whose own number ends; ends the former connections.
void ReplaceCommunicator(int64_t number, int64_t by);
// Calls a function with the number of each communicator that is removed from now on.
TFDIST_SHARED void CallWhenRemoved(std::function<void(int64_t)> function);

}  // namespace tfdist
