/* A shared library that has nothing to do with CUDA. */
#include <unistd.h>

int leaf(void);

int leaf(void) { return getppid() > 0; }
