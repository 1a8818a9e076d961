// The functions of TensorFlow's C API that the operations use, found in the TensorFlow of this process when it runs.
//
// They are looked up by name, so that one binary serves several releases of TensorFlow, and is built without it. The
// declarations follow tensorflow/c/{tf_tensor,tf_status,kernels,ops}.h.
#pragma once

#include <cstddef>
#include <cstdint>

struct TF_Tensor;
struct TF_Status;
struct TF_OpKernelContext;
struct TF_OpKernelConstruction;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_AsyncOpKernelDoneCallback;

#define TFDIST_TENSORFLOW_FUNCTIONS(F)                                                                              \
  F(TF_NewStatus, TF_Status*, ())                                                                                   \
  F(TF_DeleteStatus, void, (TF_Status*))                                                                            \
  F(TF_SetStatus, void, (TF_Status*, int, const char*))                                                             \
  F(TF_GetCode, int, (const TF_Status*))                                                                            \
  F(TF_Message, const char*, (const TF_Status*))                                                                    \
  F(TF_NewTensor, TF_Tensor*, (int, const int64_t*, int, void*, size_t, void (*)(void*, size_t, void*), void*))     \
  F(TF_DeleteTensor, void, (TF_Tensor*))                                                                            \
  F(TF_TensorType, int, (const TF_Tensor*))                                                                         \
  F(TF_NumDims, int, (const TF_Tensor*))                                                                            \
  F(TF_Dim, int64_t, (const TF_Tensor*, int))                                                                       \
  F(TF_TensorByteSize, size_t, (const TF_Tensor*))                                                                  \
  F(TF_TensorData, void*, (const TF_Tensor*))                                                                       \
  F(TF_TensorElementCount, int64_t, (const TF_Tensor*))                                                             \
  F(TF_NewKernelBuilder, TF_KernelBuilder*,                                                                         \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*), void (*)(void*, TF_OpKernelContext*),           \
     void (*)(void*)))                                                                                              \
  F(TF_NewAsyncKernelBuilder, TF_KernelBuilder*,                                                                    \
    (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                                                 \
     void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))                         \
  F(TF_RegisterKernelBuilder, void, (const char*, TF_KernelBuilder*, TF_Status*))                                   \
  F(TF_OpKernelConstruction_GetAttrInt64, void, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))      \
  F(TF_OpKernelConstruction_GetAttrFloat, void, (TF_OpKernelConstruction*, const char*, float*, TF_Status*))        \
  F(TF_OpKernelConstruction_Failure, void, (TF_OpKernelConstruction*, TF_Status*))                                  \
  F(TF_GetInput, void, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                         \
  F(TF_SetOutput, void, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                   \
  F(TF_AllocateOutput, TF_Tensor*, (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))        \
  F(TF_OpKernelContext_Failure, void, (TF_OpKernelContext*, TF_Status*))                                            \
  F(TF_NewOpDefinitionBuilder, TF_OpDefinitionBuilder*, (const char*))                                              \
  F(TF_OpDefinitionBuilderAddAttr, void, (TF_OpDefinitionBuilder*, const char*))                                    \
  F(TF_OpDefinitionBuilderAddInput, void, (TF_OpDefinitionBuilder*, const char*))                                   \
  F(TF_OpDefinitionBuilderAddOutput, void, (TF_OpDefinitionBuilder*, const char*))                                  \
  F(TF_OpDefinitionBuilderSetIsStateful, void, (TF_OpDefinitionBuilder*, bool))                                     \
  F(TF_OpDefinitionBuilderSetShapeInferenceFunction, void,                                                          \
    (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                                     \
  F(TF_RegisterOpDefinition, void, (TF_OpDefinitionBuilder*, TF_Status*))                                           \
  F(TF_ShapeInferenceContextSetUnknownShape, void, (TF_ShapeInferenceContext*, TF_Status*))

#define TFDIST_DECLARE(name, result, arguments) extern result(*name) arguments;
namespace tfdist {
TFDIST_TENSORFLOW_FUNCTIONS(TFDIST_DECLARE)

// Looks all functions up. Returns the name of one that is missing, or null.
const char* FindTensorFlow();
}  // namespace tfdist
#undef TFDIST_DECLARE
