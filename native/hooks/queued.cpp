#include "hooks/queued.hpp"

#include <cstring>

namespace runlist::hooks {

bool Parameters::look(const operations::Calls& calls, CUfunction function, void** values, void** buffer) {
    if (values != nullptr && buffer != nullptr) return false;
    if (buffer != nullptr) {
        count = 0;
        buffered = true;
        for (void** word = buffer; *word != CU_LAUNCH_PARAM_END; word += 2) {
            if (*word == CU_LAUNCH_PARAM_BUFFER_POINTER) {
                extra = word[1];
            } else if (*word == CU_LAUNCH_PARAM_BUFFER_SIZE) {
                extra_bytes = *static_cast<const std::size_t*>(word[1]);
            } else {
                return false;
            }
        }
        return extra != nullptr && extra_bytes <= operations::Kernel::kParameterBytes;
    }
    const bool known = calls.cuFuncGetParamInfo != nullptr && function != nullptr &&
                       operations::parameters_of(calls, function, count, sizes);
    if (!known || count < 0) return false;
    if (values == nullptr) return count == 0;
    for (int index = 0; index < count; ++index) {
        if (values[index] == nullptr) return false;
    }
    return true;
}

// An attribute that names an event, or answers, is not to be kept.
bool Parameters::look(const CUlaunchConfig* launch) {
    if (launch == nullptr || launch->numAttrs > 64 || (launch->numAttrs > 0 && launch->attrs == nullptr)) return false;
    for (unsigned index = 0; index < launch->numAttrs; ++index) {
        switch (launch->attrs[index].id) {
            case CU_LAUNCH_ATTRIBUTE_IGNORE:
            case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
            case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
            case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
            case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
            case CU_LAUNCH_ATTRIBUTE_PRIORITY:
            case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
            case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
                break;
            default:
                return false;
        }
    }
    config = launch;
    return true;
}

std::size_t Parameters::bytes() const {
    std::size_t sum = rounded(sizeof(Packed)) + rounded(extra_bytes);
    if (config != nullptr) sum += rounded(config->numAttrs * sizeof(CUlaunchAttribute));
    for (int index = 0; index < count; ++index) sum += 16 + rounded(sizes[index]);
    return sum;
}

void Parameters::pack(std::byte* to, CUstream stream, void** values) const {
    Packed packed{.count = count, .buffered = buffered, .extra_bytes = extra_bytes, .config = {}};
    if (config != nullptr) {
        packed.config = *config;
        packed.config.hStream = stream;
    }
    std::memcpy(to, &packed, sizeof(packed));
    to += rounded(sizeof(packed));
    if (config != nullptr) {
        std::memcpy(to, config->attrs, config->numAttrs * sizeof(CUlaunchAttribute));
        to += rounded(config->numAttrs * sizeof(CUlaunchAttribute));
    }
    if (buffered) std::memcpy(to, extra, extra_bytes);
    for (int index = 0; index < count; ++index) {
        const std::size_t size = sizes[index];
        std::memcpy(to, &size, sizeof(size));
        std::memcpy(to + 16, values[index], size);
        to += 16 + rounded(size);
    }
}

Unpacked::Unpacked(const std::byte* from) {
    Packed packed;
    std::memcpy(&packed, from, sizeof(packed));
    from += rounded(sizeof(packed));
    auto* at = const_cast<std::byte*>(from);
    config = packed.config;
    config.attrs = reinterpret_cast<CUlaunchAttribute*>(at);
    at += rounded(config.numAttrs * sizeof(CUlaunchAttribute));
    buffered = packed.buffered;
    extra_bytes = packed.extra_bytes;
    extra[0] = CU_LAUNCH_PARAM_BUFFER_POINTER;
    extra[1] = at;
    extra[2] = CU_LAUNCH_PARAM_BUFFER_SIZE;
    extra[3] = &extra_bytes;
    extra[4] = CU_LAUNCH_PARAM_END;
    for (int index = 0; index < packed.count; ++index) {
        std::size_t size = 0;
        std::memcpy(&size, at, sizeof(size));
        values[index] = at + 16;
        at += 16 + rounded(size);
    }
}

bool is_captured_now(int row, CUstream stream) { return any_capture() && is_captured(row, stream, false); }

}  // namespace runlist::hooks
