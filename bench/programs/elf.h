/*
 * A library's own functions, read from its symbol table in memory: dlsym may be answered by a library that stands
 * between, which is what is to be compared with.
 */
#pragma once

#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <string.h>

#include "cuda.h"

/* How many symbols there are. DT_HASH says so; with DT_GNU_HASH it is one more than the last of the longest chain. */
static inline uint32_t symbol_count(const uint32_t* hash, const uint32_t* gnu_hash) {
    if (hash) return hash[1];
    if (!gnu_hash) return 0;
    const uint32_t bucket_count = gnu_hash[0], first = gnu_hash[1];
    const uint32_t* buckets = (const uint32_t*)((const ElfW(Addr)*)(gnu_hash + 4) + gnu_hash[2]);
    const uint32_t* chains = buckets + bucket_count;
    uint32_t last = 0;
    for (uint32_t i = 0; i < bucket_count; ++i)
        if (buckets[i] > last) last = buckets[i];
    if (last < first) return first;
    while (!(chains[last - first] & 1)) ++last;
    return last + 1;
}

/* What the library of a handle of dlopen defines by that name; NULL without it. */
static inline void* own_symbol(void* library, const char* name) {
    struct link_map* map;
    const ElfW(Sym)* symbols = NULL;
    const char* strings = NULL;
    const uint32_t *hash = NULL, *gnu_hash = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map)) return NULL;
    for (const ElfW(Dyn)* entry = map->l_ld; entry->d_tag != DT_NULL; ++entry) {
        const void* there = (const void*)entry->d_un.d_ptr;
        if (entry->d_tag == DT_SYMTAB) symbols = there;
        if (entry->d_tag == DT_STRTAB) strings = there;
        if (entry->d_tag == DT_HASH) hash = there;
        if (entry->d_tag == DT_GNU_HASH) gnu_hash = there;
    }
    if (!symbols || !strings) return NULL;
    const uint32_t count = symbol_count(hash, gnu_hash);
    for (uint32_t i = 0; i < count; ++i) {
        if (symbols[i].st_shndx == SHN_UNDEF || strcmp(strings + symbols[i].st_name, name)) continue;
        return (void*)(map->l_addr + symbols[i].st_value);
    }
    return NULL;
}

/* All functions by the library's own table. */
static inline struct cuda by_symbol_table(void* library) {
    struct cuda cuda;
#define FUNCTION(name, symbol, version, parameters) *(void**)&cuda.name = own_symbol(library, #symbol);
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    if (!cuda.cuLaunchKernel) fail("no cuLaunchKernel in the driver's symbol table", 0);
    return cuda;
}
