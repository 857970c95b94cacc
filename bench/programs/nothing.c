/* A driver whose functions succeed at once, without a look at their arguments: what is left of a call is what stands
 * before it.
 */
#define FUNCTION(symbol) \
    int symbol(void) { return 0; }

FUNCTION(cuInit)
FUNCTION(cuLaunchKernel)
FUNCTION(cuGraphLaunch)
FUNCTION(cuMemAlloc_v2)
FUNCTION(cuMemFree_v2)
FUNCTION(cuMemAllocAsync)
FUNCTION(cuMemFreeAsync)
