// Loading modules: the same PTX as a real GPU takes, of which the emulated kernels are used by name.
#include "module.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "../kernels.hpp"
#include "driver.hpp"
#include "ptx.hpp"

namespace emulator::cuda {
namespace {

// Guarded by the driver's lock.
struct Loaded {
    std::set<Module*> modules;
    std::set<const Function*> functions;
};

Loaded& loaded() {
    static auto* const all = new Loaded;  // never destroyed, as the driver
    return *all;
}

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
std::unique_ptr<Function> make_function(Module& module, const PtxEntry& entry) {
    for (std::uint32_t index = 0; index < kKernels.size(); ++index) {
        if (kKernels[index].name != entry.name ||
            !std::ranges::equal(kKernels[index].parameter_sizes, entry.parameter_sizes))
            continue;
        auto function = std::make_unique<Function>(Function{&module, index, entry.name, entry.parameter_sizes, {}, 0});
        for (const std::uint32_t size : function->parameter_sizes) {
            const std::uint32_t offset = (function->parameter_bytes + size - 1) / size * size;
            function->parameter_offsets.push_back(offset);
            function->parameter_bytes = offset + size;
        }
        return function;
    }
    return nullptr;
}

CUresult load(const void* image, Module*& made) {
    if (!image) return CUDA_ERROR_INVALID_VALUE;
    if (is_binary(image)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const auto entries = parse_ptx(static_cast<const char*>(image));
    if (!entries) return CUDA_ERROR_INVALID_IMAGE;
    auto module = std::make_unique<Module>();
    for (const PtxEntry& entry : *entries)
        if (auto function = make_function(*module, entry)) {
            loaded().functions.insert(function.get());
            module->functions.emplace(entry.name, std::move(function));
        }
    made = module.release();
    loaded().modules.insert(made);
    return CUDA_SUCCESS;
}

CUresult unload(Driver& driver, Module* module) {
    if (!loaded().modules.erase(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (driver.contexts.contains(module->context) && module->context->id == module->context_id) {
        module->context->code.give(module->code);
        module->context->code.trim(driver, 0);
    }
    for (const auto& [name, function] : module->functions) loaded().functions.erase(function.get());
    delete module;
    return CUDA_SUCCESS;
}

CUresult find_by_name(Module* module, const char* name, Function*& found) {
    if (!loaded().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    const auto it = module->functions.find(name);
    if (it == module->functions.end()) return CUDA_ERROR_NOT_FOUND;
    found = it->second.get();
    return CUDA_SUCCESS;
}

std::optional<std::string> read_file(const char* path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

const Function* find_function(const void* handle) {
    const auto* function = static_cast<const Function*>(handle);
    return loaded().functions.contains(function) ? function : nullptr;
}

}  // namespace emulator::cuda

using namespace emulator;
using namespace emulator::cuda;

CUresult CUDAAPI cuModuleLoadData(CUmodule* handle, const void* image) {
    EMULATOR_ENTER_CONTEXT();
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    Module* made = nullptr;
    if (const CUresult result = load(image, made); result != CUDA_SUCCESS) return result;
    // As much as the text: the code itself is nothing that is here.
    const CUresult result = context.code.take(driver, std::strlen(static_cast<const char*>(image)) + 1, made->code);
    if (result != CUDA_SUCCESS) {
        unload(driver, made);
        return result;
    }
    made->context = &context;
    made->context_id = context.id;
    *handle = reinterpret_cast<CUmodule>(made);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* handle, const void* image, unsigned, CUjit_option*, void**) {
    return cuModuleLoadData(handle, image);
}

CUresult CUDAAPI cuModuleLoad(CUmodule* handle, const char* path) {
    const auto image = path ? read_file(path) : std::nullopt;
    return image ? cuModuleLoadData(handle, image->c_str()) : CUDA_ERROR_FILE_NOT_FOUND;
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle) {
    EMULATOR_ENTER_CONTEXT();
    guard.unlock();
    synchronize(driver, context);
    guard.lock();
    return unload(driver, reinterpret_cast<Module*>(handle));
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    EMULATOR_ENTER();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    Function* found = nullptr;
    const CUresult result = find_by_name(reinterpret_cast<Module*>(module), name, found);
    if (result == CUDA_SUCCESS) *function = reinterpret_cast<CUfunction>(found);
    return result;
}

CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**, unsigned,
                                   CUlibraryOption*, void**, unsigned) {
    EMULATOR_ENTER();
    if (!library) return CUDA_ERROR_INVALID_VALUE;
    Module* made = nullptr;
    const CUresult result = load(image, made);
    if (result == CUDA_SUCCESS) *library = reinterpret_cast<CUlibrary>(made);
    return result;
}

CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
    EMULATOR_ENTER();
    return unload(driver, reinterpret_cast<Module*>(library));
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    EMULATOR_ENTER();
    if (!kernel) return CUDA_ERROR_INVALID_VALUE;
    Function* found = nullptr;
    const CUresult result = find_by_name(reinterpret_cast<Module*>(library), name, found);
    if (result == CUDA_SUCCESS) *kernel = reinterpret_cast<CUkernel>(found);
    return result;
}

CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    EMULATOR_ENTER();
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    if (!loaded().modules.contains(reinterpret_cast<Module*>(library))) return CUDA_ERROR_INVALID_HANDLE;
    *module = reinterpret_cast<CUmodule>(library);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    EMULATOR_ENTER();
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    if (!find_function(kernel)) return CUDA_ERROR_INVALID_HANDLE;
    *function = reinterpret_cast<CUfunction>(kernel);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
    EMULATOR_ENTER();
    if (!value || attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (!find_function(handle)) return CUDA_ERROR_INVALID_HANDLE;
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = 1024;
            break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            *value = 32;
            break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = 90;
            break;
        default:
            *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction handle, CUfunction_attribute, int) {
    EMULATOR_ENTER();
    return find_function(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction handle) {
    EMULATOR_ENTER();
    const Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    *name = function->name.c_str();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction handle) {
    EMULATOR_ENTER();
    const Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!module) return CUDA_ERROR_INVALID_VALUE;
    *module = reinterpret_cast<CUmodule>(function->module);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncGetParamInfo(CUfunction handle, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    EMULATOR_ENTER();
    const Function* function = find_function(handle);
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || index >= function->parameter_sizes.size()) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->parameter_offsets[index];
    if (bytes) *bytes = function->parameter_sizes[index];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuKernelGetParamInfo(CUkernel kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
    return cuFuncGetParamInfo(reinterpret_cast<CUfunction>(kernel), index, offset, bytes);
}
