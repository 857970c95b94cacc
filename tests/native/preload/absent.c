/* Whether the driver's functions are there, to a program that has not loaded it. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    printf("%d %d\n", dlsym(RTLD_DEFAULT, "cuInit") != NULL, dlsym(RTLD_NEXT, "cuInit") != NULL);
    return 0;
}
