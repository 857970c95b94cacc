// Names and descriptions of results.
#include <algorithm>
#include <iterator>

#include "cuda/driver/exports.hpp"

namespace {

struct Description {
    CUresult result;
    const char* name;
    const char* text;
};

#define DESCRIBE(result, text) {result, #result, text}
constexpr Description kDescriptions[] = {
    DESCRIBE(CUDA_SUCCESS, "no error"),
    DESCRIBE(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    DESCRIBE(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    DESCRIBE(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    DESCRIBE(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    DESCRIBE(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"),
    DESCRIBE(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    DESCRIBE(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    DESCRIBE(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    DESCRIBE(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    DESCRIBE(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    DESCRIBE(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    DESCRIBE(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    DESCRIBE(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    DESCRIBE(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    DESCRIBE(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    DESCRIBE(CUDA_ERROR_NOT_READY, "device not ready"),
    DESCRIBE(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    DESCRIBE(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    DESCRIBE(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "cannot set while device is active in this process"),
    DESCRIBE(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    DESCRIBE(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    DESCRIBE(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    DESCRIBE(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    DESCRIBE(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    DESCRIBE(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    DESCRIBE(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
             "operation would make the legacy stream depend on a capturing blocking stream"),
    DESCRIBE(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"),
    DESCRIBE(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
             "attempt to terminate a thread-local capture sequence from another thread"),
    DESCRIBE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
             "the graph update was not performed because it included changes which violated constraints specific to "
             "instantiated graph update"),
    DESCRIBE(CUDA_ERROR_UNKNOWN, "unknown error"),
};

const Description* find(CUresult result) {
    const auto* it = std::ranges::find(kDescriptions, result, &Description::result);
    return it == std::end(kDescriptions) ? nullptr : it;
}

CUresult describe(CUresult result, const char** out, const char* Description::* what) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    const Description* found = find(result);
    *out = found ? found->*what : nullptr;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult CUDAAPI cuGetErrorName(CUresult error, const char** name) { return describe(error, name, &Description::name); }

CUresult CUDAAPI cuGetErrorString(CUresult error, const char** text) {
    return describe(error, text, &Description::text);
}
