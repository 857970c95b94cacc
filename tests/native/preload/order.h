/* What order.c and its driver have in common. */
#pragma once

#define CONTEXT ((CUcontext)0x77000)
#define FIRST ((CUstream)0x1000)
#define EXEC ((CUgraphExec)0x4000)
#define FUNCTION ((CUfunction)0x5000)

void order_reset(void);
void order_busy(int now);
int order_of(const char* name, void* stream);
