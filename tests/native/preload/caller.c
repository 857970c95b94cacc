/* Asks RM for what it is told to, and says after each request what it answered and what the driver then holds:
     alloc CLIENT PARENT OBJECT KIND BYTES      prints STATUS OBJECT HELD
     grown, packed                              the same in a later form, or with packed parameters
     free CLIENT OBJECT                         prints STATUS OBJECT HELD
     lose CLIENT OBJECT                         the driver frees it by itself */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "rm.h"

static void lose(uint32_t client, uint32_t object) {
    void* found = dlsym(RTLD_DEFAULT, "driver_lose");
    (*(void (**)(uint32_t, uint32_t))(void*[]){found})(client, object);
}

static uint64_t held(void) {
    void* found = dlsym(RTLD_DEFAULT, "driver_used");
    return (*(uint64_t(**)(void))(void*[]){found})();
}

int main(void) {
    char word[16];
    unsigned client, parent, object, kind, bytes;
    while (scanf("%15s %x", word, &client) == 2) {
        uint32_t status = 0;
        if (strcmp(word, "free") && strcmp(word, "lose")) {
            if (scanf("%x %x %x %u", &parent, &object, &kind, &bytes) != 4) return 1;
            struct Memory memory = {.size = bytes};
            uint64_t number = 0;
            void* parameters = kind == kMemory ? (void*)&memory : (void*)&number;
            struct Grown wanted = {
                {.client = client, .parent = parent, .object = object, .kind = kind, .parameters = parameters}, {0, 0}};
            wanted.alloc.flags = !strcmp(word, "packed");
            ioctl(0, strcmp(word, "grown") ? ALLOC : GROWN, &wanted);
            object = wanted.alloc.object;
            status = wanted.alloc.status;
        } else {
            if (scanf("%x", &object) != 1) return 1;
            struct Free wanted = {.client = client, .object = object};
            strcmp(word, "free") ? lose(client, object) : (void)ioctl(0, FREE, &wanted);
            status = wanted.status;
        }
        printf("%x %x %llu\n", (unsigned)status, object, (unsigned long long)held());
        fflush(stdout);
    }
    return 0;
}
