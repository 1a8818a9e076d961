// Two operations for TensorFlow: TfdistStart starts a collective operation and ends at once, TfdistWait has its result.
//
// TfdistStart is stateful, so that no optimisation drops it or merges two of them. Its token is a variable of the replica:
// a function starts the operations of a replica in one order, and those of other replicas independently of them.
// TfdistWait is asynchronous: it blocks no thread of TensorFlow. It is not stateful, since TensorFlow would then order the
// waits of all replicas; tfdist marks it as an operation that a function runs even if it does not use the result.
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "buffers.h"
#include "communicators.h"
#include "engine.h"
#include "tensorflow_c.h"

namespace tfdist {
namespace {

constexpr int kInt64 = 9;
// Results that no TfdistWait has asked for, after a step that failed, are dropped when so many later operations have
// started, unless they are kept for a later step, and when so long has passed: a running step may have more operations
// whose TfdistWait has not been called yet.
constexpr int64_t kForgotten = 4096;
constexpr std::chrono::minutes kForgottenAfter{10};

// What TensorFlow calls an asynchronous kernel with is the address of a std::function on its stack, which is gone when
// the kernel returns: the function is copied.
using Done = std::function<void()>;

struct StatusDeleter {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
using StatusOwner = std::unique_ptr<TF_Status, StatusDeleter>;

struct TensorDeleter {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using TensorOwner = std::unique_ptr<TF_Tensor, TensorDeleter>;

void FailKernel(TF_OpKernelContext* context, int code, const std::string& message) {
  StatusOwner status(TF_NewStatus());
  TF_SetStatus(status.get(), code, message.c_str());
  TF_OpKernelContext_Failure(context, status.get());
}

// A collective operation between its TfdistStart and its TfdistWait.
struct Pending {
  int64_t number = 0, communicator = 0;
  TensorOwner in, out;
  bool keeps = false;
  bool is_complete = false;
  std::chrono::steady_clock::time_point completed;
  Status status;
  TF_OpKernelContext* waiting = nullptr;
  Done done;
};

std::mutex mutex;
// Never destroyed: threads of TensorFlow may use it until the process ends.
auto& pending = *new std::map<int64_t, std::shared_ptr<Pending>>;
// Communicators that have been removed.
auto& removed = *new std::set<int64_t>;
int64_t next = 1;

void Deliver(const std::shared_ptr<Pending>& item) {
  if (item->status.code == Code::kOk) {
    StatusOwner status(TF_NewStatus());
    TF_SetOutput(item->waiting, 0, item->out.get(), status.get());
    if (TF_GetCode(status.get())) TF_OpKernelContext_Failure(item->waiting, status.get());
  } else {
    // TensorFlow replaces UNAVAILABLE by INTERNAL unless an operation is registered as one of communication, which its C
    // API cannot do.
    Code code = item->status.code == Code::kUnavailable ? Code::kAborted : item->status.code;
    FailKernel(item->waiting, static_cast<int>(code), item->status.message);
  }
  item->in.reset();
  item->out.reset();
  item->done();
}

void Complete(const std::shared_ptr<Pending>& item, const Status& status) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    item->is_complete = true;
    item->completed = std::chrono::steady_clock::now();
    item->status = status;
    // Nobody may wait for a result, such as after a step that failed.
    item->in.reset();
    if (status.code != Code::kOk) item->out.reset();
    if (item->waiting == nullptr) {
      if (removed.count(item->communicator)) pending.erase(item->number);
      return;
    }
  }
  Deliver(item);
}

// Nobody waits for what is kept of a communicator that has been removed.
void Forget(int64_t communicator) {
  std::lock_guard<std::mutex> lock(mutex);
  removed.insert(communicator);
  for (auto it = pending.begin(); it != pending.end();) {
    bool is_over = it->second->communicator == communicator && it->second->is_complete;
    it = is_over ? pending.erase(it) : std::next(it);
  }
}

struct StartKernel {
  int64_t communicator, kind, peer, group, ranks, keeps;
  float timeout_seconds;
};

void* NewStart(TF_OpKernelConstruction* construction) {
  auto kernel = std::make_unique<StartKernel>();
  StatusOwner status(TF_NewStatus());
  const std::pair<const char*, int64_t*> attributes[] = {{"communicator", &kernel->communicator},
                                                         {"kind", &kernel->kind},
                                                         {"peer", &kernel->peer},
                                                         {"group", &kernel->group},
                                                         {"ranks", &kernel->ranks},
                                                         {"keeps", &kernel->keeps}};
  for (auto [name, value] : attributes) {
    TF_OpKernelConstruction_GetAttrInt64(construction, name, value, status.get());
    if (TF_GetCode(status.get())) TF_OpKernelConstruction_Failure(construction, status.get());
  }
  TF_OpKernelConstruction_GetAttrFloat(construction, "timeout_seconds", &kernel->timeout_seconds, status.get());
  if (TF_GetCode(status.get())) TF_OpKernelConstruction_Failure(construction, status.get());
  return kernel.release();
}

// Why an operation cannot be started; "" if it can.
std::string WhyRefused(const StartKernel& kernel, TF_Tensor* value, const Engine& engine) {
  if (kernel.kind < static_cast<int64_t>(Kind::kAllReduce) || kernel.kind > static_cast<int64_t>(Kind::kReceive)) {
    return "expected a kind from 1 to 6, received " + std::to_string(kernel.kind);
  }
  if (kernel.peer < 0 || kernel.peer >= engine.size()) {
    return "expected a peer from 0 to " + std::to_string(engine.size() - 1) + ", received " +
           std::to_string(kernel.peer);
  }
  Kind kind = static_cast<Kind>(kernel.kind);
  bool is_to_itself = (kind == Kind::kSend || kind == Kind::kReceive) && kernel.peer == engine.rank();
  if (is_to_itself) return "expected another rank as the peer, received " + std::to_string(kernel.peer) + ", its own";
  if (kind != Kind::kAllGather) return "";
  if (TF_NumDims(value) == 0) return "expected a value with a first dimension for all_gather, received a scalar";
  if (kernel.ranks == engine.size()) return "";
  return "expected all_gather of " + std::to_string(engine.size()) + " ranks, received ranks=" +
         std::to_string(kernel.ranks);
}

void StartOperation(const StartKernel* kernel, TF_OpKernelContext* context) {
  StatusOwner status(TF_NewStatus());
  TF_Tensor *value = nullptr, *key = nullptr;
  TF_GetInput(context, 0, &value, status.get());
  auto item = std::make_shared<Pending>();
  item->in.reset(value);
  item->keeps = kernel->keeps != 0;
  item->communicator = kernel->communicator;
  if (!TF_GetCode(status.get())) TF_GetInput(context, 1, &key, status.get());
  TensorOwner owned_key(key);
  int64_t number = 0;
  TensorOwner handle(TF_GetCode(status.get())
                         ? nullptr
                         : TF_AllocateOutput(context, 0, kInt64, nullptr, 0, sizeof number, status.get()));
  if (TF_GetCode(status.get())) return TF_OpKernelContext_Failure(context, status.get());
  auto engine = FindCommunicator(kernel->communicator);
  if (!engine) return FailKernel(context, static_cast<int>(Code::kAborted), "the communicator has been closed");

  std::string why = WhyRefused(*kernel, value, *engine);
  if (!why.empty()) return FailKernel(context, static_cast<int>(Code::kInvalidArgument), why);

  Request request;
  request.kind = static_cast<Kind>(kernel->kind);
  request.dtype = static_cast<DType>(TF_TensorType(value));
  request.elements = static_cast<size_t>(TF_TensorElementCount(value));
  std::vector<int64_t> shape;
  for (int i = 0; i < TF_NumDims(value); ++i) shape.push_back(TF_Dim(value, i));
  size_t bytes = TF_TensorByteSize(value);
  if (request.kind == Kind::kAllGather) {
    shape[0] *= kernel->ranks;
    bytes *= static_cast<size_t>(kernel->ranks);
  }
  if (request.kind == Kind::kReduceScatter) {
    Part part = PartOf(request.elements, engine->rank(), engine->size());
    shape = {static_cast<int64_t>(part.end - part.begin)};
    bytes = (part.end - part.begin) * SizeOf(request.dtype);
  }
  // Nothing comes back to a sender.
  if (request.kind == Kind::kSend) {
    shape = {0};
    bytes = 0;
  }
  void* buffer = TakeBuffer(bytes);
  auto give = [](void* data, size_t, void* size) { GiveBuffer(data, reinterpret_cast<size_t>(size)); };
  item->out.reset(TF_NewTensor(TF_TensorType(value), shape.data(), static_cast<int>(shape.size()), buffer, bytes, give,
                               reinterpret_cast<void*>(bytes)));
  request.in = static_cast<const char*>(TF_TensorData(value));
  request.out = static_cast<char*>(buffer);
  request.peer = static_cast<int>(kernel->peer);
  request.tag = static_cast<uint64_t>(kernel->group) << 32 |
                static_cast<uint32_t>(*static_cast<const int32_t*>(TF_TensorData(key)));
  request.timeout_seconds = kernel->timeout_seconds;
  request.done = [item](const Status& result) { Complete(item, result); };
  {
    std::lock_guard<std::mutex> lock(mutex);
    number = item->number = next++;
    pending[number] = item;
    auto oldest = pending.begin();
    while (oldest != pending.end() && oldest->second->keeps) ++oldest;
    bool is_old = oldest != pending.end() && oldest->first < number - kForgotten;
    if (is_old && oldest->second->is_complete &&
        std::chrono::steady_clock::now() - oldest->second->completed > kForgottenAfter) {
      pending.erase(oldest);
    }
  }
  *static_cast<int64_t*>(TF_TensorData(handle.get())) = number;
  engine->Start(std::move(request));
}

// No exception may pass TensorFlow, which is C between this library and its own.
void RunStart(void* opaque, TF_OpKernelContext* context) {
  try {
    StartOperation(static_cast<StartKernel*>(opaque), context);
  } catch (const std::bad_alloc&) {
    FailKernel(context, static_cast<int>(Code::kResourceExhausted),
               "there is no memory for the result of a collective operation");
  } catch (const std::exception& error) {
    FailKernel(context, static_cast<int>(Code::kInternal), error.what());
  }
}

void* NewWait(TF_OpKernelConstruction*) { return nullptr; }

void RunWait(void*, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback) {
  Done done = *reinterpret_cast<Done*>(callback);
  StatusOwner status(TF_NewStatus());
  TF_Tensor* handle = nullptr;
  TF_GetInput(context, 0, &handle, status.get());
  if (TF_GetCode(status.get())) {
    TF_OpKernelContext_Failure(context, status.get());
    return done();
  }
  int64_t number = *static_cast<const int64_t*>(TF_TensorData(handle));
  TF_DeleteTensor(handle);
  std::shared_ptr<Pending> item;
  bool is_complete = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = pending.find(number);
    if (found != pending.end()) {
      item = found->second;
      pending.erase(found);
      item->waiting = context;
      item->done = done;
      is_complete = item->is_complete;
    }
  }
  if (!item) {
    FailKernel(context, static_cast<int>(Code::kInvalidArgument), "expected a TfdistStart for each TfdistWait, of a communicator that has not been closed");
    return done();
  }
  if (is_complete) Deliver(item);
}

void DeleteStart(void* kernel) { delete static_cast<StartKernel*>(kernel); }
void DeleteWait(void*) {}

void HasUnknownShape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeInferenceContextSetUnknownShape(context, status);
}

const char* Register() {
  if (const char* missing = FindTensorFlow()) return missing;
  StatusOwner status(TF_NewStatus());
  const char* types =
      "T: {float, double, half, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64}";
  TF_OpDefinitionBuilder* start = TF_NewOpDefinitionBuilder("TfdistStart");
  for (const char* attribute : {types, "communicator: int", "kind: int", "peer: int = 0", "group: int = 0",
                                "ranks: int = 1", "keeps: int = 0", "timeout_seconds: float = 1e9"}) {
    TF_OpDefinitionBuilderAddAttr(start, attribute);
  }
  TF_OpDefinitionBuilderAddInput(start, "value: T");
  TF_OpDefinitionBuilderAddInput(start, "key: int32");
  TF_OpDefinitionBuilderAddInput(start, "token: resource");
  TF_OpDefinitionBuilderAddOutput(start, "operation: int64");
  TF_OpDefinitionBuilderSetIsStateful(start, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(start, HasUnknownShape);
  TF_RegisterOpDefinition(start, status.get());
  if (TF_GetCode(status.get())) return "TF_RegisterOpDefinition";
  TF_OpDefinitionBuilder* wait = TF_NewOpDefinitionBuilder("TfdistWait");
  TF_OpDefinitionBuilderAddAttr(wait, types);
  TF_OpDefinitionBuilderAddInput(wait, "operation: int64");
  TF_OpDefinitionBuilderAddOutput(wait, "value: T");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(wait, HasUnknownShape);
  TF_RegisterOpDefinition(wait, status.get());
  if (TF_GetCode(status.get())) return "TF_RegisterOpDefinition";
  TF_RegisterKernelBuilder("TfdistStart", TF_NewKernelBuilder("TfdistStart", "CPU", NewStart, RunStart, DeleteStart),
                           status.get());
  TF_RegisterKernelBuilder("TfdistWait", TF_NewAsyncKernelBuilder("TfdistWait", "CPU", NewWait, RunWait, DeleteWait),
                           status.get());
  CallWhenRemoved(Forget);
  return TF_GetCode(status.get()) ? "TF_RegisterKernelBuilder" : nullptr;
}

const char* const missing = Register();

}  // namespace
}  // namespace tfdist

// The name of the function of TensorFlow that is missing; null if the operations are registered.
extern "C" __attribute__((visibility("default"))) const char* tfdist_missing_of_tensorflow() {
  return tfdist::missing;
}
