#include "tenant/join.hpp"

#include "tenant/link.hpp"

namespace runlist {

void join(int control_fd, std::uint32_t client, int region_fd) {
    Link link;
    if (!link.open()) return;
    const int descriptors[Link::kMaxDescriptors] = {control_fd, region_fd};
    link.send({.kind = Kind::kJoin, .nanoseconds = client}, std::span(descriptors, region_fd < 0 ? 1 : 2));
    link.close();
}

}  // namespace runlist
