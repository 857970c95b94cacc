// Loading modules: the same PTX as a real GPU takes, of which the emulated kernels are used by name.
#include "cuda/kernel/module.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "cuda/execution/current.hpp"
#include "cuda/execution/queue.hpp"
#include "cuda/kernel/ptx.hpp"
#include "cuda/memory/heap.hpp"
#include "shared/kernels.hpp"

namespace emulator::cuda {
namespace {

struct Module {
    std::map<std::string, std::unique_ptr<Function>> functions;
    const Context* context;  // whose memory has its code, at
    std::uint64_t code;      // until the context is destroyed
};

struct Loaded {
    std::set<Module*> modules;
    std::set<Function*> functions;
    std::map<const Context*, Heap> code;
};

Loaded& loaded() { return kept<Loaded>(); }

// Binary images begin with one of these: ELF, or a fat binary and its wrapper.
bool is_binary(const void* image) {
    constexpr std::uint32_t kElf = 0x464C457F;
    constexpr std::uint32_t kFatBinary = 0xBA55ED50;
    constexpr std::uint32_t kFatBinaryWrapper = 0x466243B1;
    unsigned char bytes[4]{};
    for (int i = 0; i < 4 && (i == 0 || bytes[i - 1] != 0); ++i) bytes[i] = static_cast<const unsigned char*>(image)[i];
    std::uint32_t magic = 0;
    std::memcpy(&magic, bytes, sizeof magic);
    return magic == kElf || magic == kFatBinary || magic == kFatBinaryWrapper;
}

// A kernel that the emulator has, with the signature that it knows; anything else is left out and not found later.
std::unique_ptr<Function> make_function(const PtxEntry& entry) {
    for (std::uint32_t index = 0; index < kKernels.size(); ++index) {
        if (kKernels[index].name != entry.name ||
            !std::ranges::equal(kKernels[index].parameter_sizes, entry.parameter_sizes))
            continue;
        auto function = std::make_unique<Function>(Function{index, entry.parameter_sizes, {}, 0});
        for (const std::uint32_t size : function->parameter_sizes) {
            const std::uint32_t offset = (function->parameter_bytes + size - 1) / size * size;
            function->parameter_offsets.push_back(offset);
            function->parameter_bytes = offset + size;
        }
        return function;
    }
    return nullptr;
}

// As much memory as the text: the code itself is nothing that is here.
CUresult load_image(Driver& driver, Context& context, const void* image, Module*& made) {
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    if (is_binary(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const std::string_view text = static_cast<const char*>(image);
    const auto entries = parse_ptx(text);
    if (!entries) return CUDA_ERROR_INVALID_IMAGE;
    Heap& heap = loaded().code.try_emplace(&context, context.gpu).first->second;
    std::uint64_t code = 0;
    EMULATOR_TRY(heap.take(driver, text.size() + 1, code));
    made = new Module{{}, &context, code};
    loaded().modules.insert(made);
    for (const PtxEntry& entry : *entries)
        if (auto function = make_function(entry)) {
            loaded().functions.insert(function.get());
            made->functions.emplace(entry.name, std::move(function));
        }
    return CUDA_SUCCESS;
}

CUresult unload(Driver& driver, Module* module) {
    if (!loaded().modules.erase(module)) return no_such_handle();
    if (module->context) {
        Heap& heap = loaded().code.at(module->context);
        heap.give(module->code);
        heap.trim(driver, 0);
    }
    for (const auto& [name, function] : module->functions) loaded().functions.erase(function.get());
    delete module;
    return CUDA_SUCCESS;
}

}  // namespace

const Function* find_function(CUfunction handle) { return named(loaded().functions, handle); }

void drop_code(Driver& driver, const Context& context) {
    for (Module* module : loaded().modules)
        if (module->context == &context) module->context = nullptr;
    const auto found = loaded().code.find(&context);
    if (found == loaded().code.end()) return;
    found->second.clear(driver);
    loaded().code.erase(found);
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuModuleLoadData(CUmodule* handle, const void* image) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Module* made = nullptr;
    const CUresult result = load_image(driver, context, image, made);
    if (result == CUDA_SUCCESS) *handle = reinterpret_cast<CUmodule>(made);
    return result;
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
    EMULATOR_ENTER_CONTEXT();
    wait_for_all(driver, context, guard);
    return unload(driver, reinterpret_cast<Module*>(handle));
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
    EMULATOR_ENTER();
    const Module* module = named(loaded().modules, handle);
    if (!module) return no_such_handle();
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    const auto found = module->functions.find(name);
    if (found == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
    *function = reinterpret_cast<CUfunction>(found->second.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
    EMULATOR_ENTER();
    const Function* function = find_function(handle);
    if (!function) return no_such_handle();
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = kKernels[function->kernel].name.data();
    return CUDA_SUCCESS;
}

// The only attribute that changes what a launch may do here; the others are taken and change nothing.
CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    EMULATOR_ENTER();
    Function* function = named(loaded().functions, handle);
    if (!function) return no_such_handle();
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value < 0 || static_cast<unsigned>(value) > kMaxShared) return CUDA_ERROR_INVALID_VALUE;
    function->shared_bytes = static_cast<unsigned>(value);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache) {
    EMULATOR_ENTER();
    return find_function(handle) ? CUDA_SUCCESS : no_such_handle();
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* size) {
    EMULATOR_ENTER();
    const Function* function = find_function(handle);
    if (!function) return no_such_handle();
    if (!offset || index >= function->parameter_sizes.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->parameter_offsets[index];
    if (size) *size = function->parameter_sizes[index];
    return CUDA_SUCCESS;
}
