#include "tensorflow_c.h"

#include <dlfcn.h>

namespace tfdist {

#define TFDIST_DEFINE(name, result, arguments) result(*name) arguments = nullptr;
TFDIST_TENSORFLOW_FUNCTIONS(TFDIST_DEFINE)
#undef TFDIST_DEFINE

const char* FindTensorFlow() {
  // TensorFlow has loaded this library. Its functions are not visible to other libraries by themselves.
  void* library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return "libtensorflow_framework.so.2";
#define TFDIST_FIND(name, result, arguments)                                \
  name = reinterpret_cast<result(*) arguments>(dlsym(library, #name));      \
  if (name == nullptr) return #name;
  TFDIST_TENSORFLOW_FUNCTIONS(TFDIST_FIND)
#undef TFDIST_FIND
  return nullptr;
}

}  // namespace tfdist
