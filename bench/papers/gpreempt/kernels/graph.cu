// Graph analytics over compressed sparse rows: a thread a vertex, whose edges are those from offsets[v] to offsets[v + 1].
// Results do not depend on the order of the blocks, bit for bit. All but PageRank's kernels may run twice.

// Breadth-first search, one level: who was reached in `depth` steps reaches neighbours in one more.
extern "C" __global__ void bfs_level(const int* offsets, const int* targets, int* level, int vertices, int depth,
                                     int* changed) {
    const int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices || level[v] != depth) return;
    for (int edge = offsets[v]; edge < offsets[v + 1]; ++edge) {
        if (atomicCAS(&level[targets[edge]], -1, depth + 1) == -1) *changed = 1;
    }
}

// Shortest paths, one round over all edges (Bellman and Ford); -1 as unsigned is no path.
extern "C" __global__ void sssp_relax(const int* offsets, const int* targets, const unsigned* weights,
                                      unsigned* distance, int vertices, int* changed) {
    const int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices) return;
    const unsigned mine = *static_cast<volatile unsigned*>(distance + v);
    if (mine == 0xffffffffu) return;
    for (int edge = offsets[v]; edge < offsets[v + 1]; ++edge) {
        const unsigned over = mine + weights[edge];
        if (atomicMin(&distance[targets[edge]], over) > over) *changed = 1;
    }
}

// Connected components, one round: the smallest label of either end goes to both.
extern "C" __global__ void cc_spread(const int* offsets, const int* targets, int* label, int vertices, int* changed) {
    const int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices) return;
    for (int edge = offsets[v]; edge < offsets[v + 1]; ++edge) {
        const int mine = *static_cast<volatile int*>(label + v);
        const int theirs = *static_cast<volatile int*>(label + targets[edge]);
        if (mine < theirs && atomicMin(&label[targets[edge]], mine) > mine) *changed = 1;
        if (theirs < mine && atomicMin(&label[v], theirs) > theirs) *changed = 1;
    }
}

// PageRank, one iteration in two kernels. Ranks are whole numbers, so that sums are the same in any order; `damped` of
// 100 parts go along the edges. What vertices without edges hold is everybody's. Neither kernel may run twice.
extern "C" __global__ void pagerank_push(const int* offsets, const int* targets, const unsigned long long* rank,
                                         unsigned long long* sum, unsigned long long* lost, int vertices,
                                         int damped) {
    const int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices) return;
    const unsigned long long given = rank[v] * damped / 100;
    const int edges = offsets[v + 1] - offsets[v];
    if (edges == 0) {
        atomicAdd(lost, given);
        return;
    }
    const unsigned long long each = given / edges;
    for (int edge = offsets[v]; edge < offsets[v + 1]; ++edge) atomicAdd(&sum[targets[edge]], each);
}

extern "C" __global__ void pagerank_take(unsigned long long* rank, unsigned long long* sum,
                                         const unsigned long long* lost, int vertices, unsigned long long base) {
    const int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= vertices) return;
    rank[v] = base + *lost / vertices + sum[v];
    sum[v] = 0;
}
