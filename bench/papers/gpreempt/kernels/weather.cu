// Dry air in a vertical plane: the compressible Euler equations as finite volumes (atmosphere.py has the cases).
//
// The unknowns are density r, momenta r*u and r*w, and r*t with the potential temperature t. What is kept of r and r*t
// is what they differ by from a background R(z), T(z) that rests: dP/dz = -g R, with the pressure P = C (R T)^gamma. So
// air at rest has no fluxes at all, rather than large ones that cancel:
//
//   d/dt r      + d/dx (r u)         + d/dz (r w)         = 0
//   d/dt (r u)  + d/dx (r u u + p')  + d/dz (r w u)       = 0
//   d/dt (r w)  + d/dx (r u w)       + d/dz (r w w + p')  = -g r'
//   d/dt (r t)  + d/dx (r u t)       + d/dz (r w t)       = 0
//
// One direction is advanced at a time, in three stages of a Runge-Kutta method: a third of the step, half of it, all of
// it, each from where the step began. A stage is three kernels: the edges, the fluxes, the sums. The last stage adds to
// the state in place: to run any of its blocks twice is wrong.
//
// state[4][nz + 4][nx + 4] has two cells around the plane; flux[4][nz + 1][nx + 1] is of the faces before each cell.

__device__ constexpr int kDensity = 0, kAcross = 1, kUp = 2, kHeat = 3, kVariables = 4, kAround = 2;
__device__ constexpr double kGamma = 1004.0 / 717.0;

__device__ __forceinline__ size_t cell(int variable, int k, int i, int nx, int nz) {
    const size_t row = static_cast<size_t>(variable) * (nz + 2 * kAround) + (k + kAround);
    return row * (nx + 2 * kAround) + (i + kAround);
}

__device__ __forceinline__ size_t face(int variable, int k, int i, int nx, int nz) {
    return (static_cast<size_t>(variable) * (nz + 1) + k) * (nx + 1) + i;
}

// What a variable is on a face between the second and the third of four cells, to the fourth order in their averages.
// The sums are in pairs so that a mirrored state gives the mirrored bits.
__device__ __forceinline__ double between(const double* first, size_t apart) {
    const double inner = first[apart] + first[2 * apart];
    const double outer = first[0] + first[3 * apart];
    return (7.0 * inner - outer) / 12.0;
}

// The third difference over the same cells. As a flux it damps what the grid cannot carry: waves of two cells.
__device__ __forceinline__ double third(const double* first, size_t apart) {
    const double inner = first[2 * apart] - first[apart];
    const double outer = first[3 * apart] - first[0];
    return outer - 3.0 * inner;
}

// The pressure beyond the background's, exactly 0 where there is no more r*t than there.
__device__ __forceinline__ double excess(double heat, double background_heat, double background_pressure) {
    return background_pressure * expm1(kGamma * log1p(heat / background_heat));
}

// Left and right: the plane goes on where it begins. Rows jet_begin..jet_end have wind blown in from the left.
extern "C" __global__ void edges_x(double* state, const double* density, const double* heat, int nx, int nz,
                                   int jet_begin, int jet_end, double jet_speed, double jet_temperature) {
    const int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k < nz) {
        for (int variable = 0; variable < kVariables; ++variable) {
            for (int each = 0; each < kAround; ++each) {
                state[cell(variable, k, each - kAround, nx, nz)] =
                    state[cell(variable, k, nx - kAround + each, nx, nz)];
                state[cell(variable, k, nx + each, nx, nz)] = state[cell(variable, k, each, nx, nz)];
            }
        }
        if (k >= jet_begin && k < jet_end) {
            for (int i = -kAround; i < 0; ++i) {
                const double whole = state[cell(kDensity, k, i, nx, nz)] + density[k + kAround];
                state[cell(kAcross, k, i, nx, nz)] = whole * jet_speed;
                state[cell(kHeat, k, i, nx, nz)] = whole * jet_temperature - heat[k + kAround];
            }
        }
    }
}

// Bottom and top: walls without friction, in which the plane is mirrored.
extern "C" __global__ void edges_z(double* state, const double* density, int nx, int nz) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < nx) {
        for (int each = 0; each < 2 * kAround; ++each) {
            const int k = each < kAround ? -1 - each : nz + each - kAround;
            const int from = each < kAround ? each : 2 * nz - 1 - k;
            // The wind is the same behind the wall, where the background is as thin or thick as it is there.
            const double thinner = density[k + kAround] / density[from + kAround];
            state[cell(kDensity, k, i, nx, nz)] = state[cell(kDensity, from, i, nx, nz)];
            state[cell(kAcross, k, i, nx, nz)] = state[cell(kAcross, from, i, nx, nz)] * thinner;
            state[cell(kUp, k, i, nx, nz)] = -state[cell(kUp, from, i, nx, nz)];
            state[cell(kHeat, k, i, nx, nz)] = state[cell(kHeat, from, i, nx, nz)];
        }
    }
}

extern "C" __global__ void flux_x(const double* state, const double* density, const double* heat,
                                  const double* pressure, double* flux, int nx, int nz, double damping) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int k = blockIdx.y * blockDim.y + threadIdx.y;
    if (i <= nx && k < nz) {
        double value[kVariables], rough[kVariables];
        for (int variable = 0; variable < kVariables; ++variable) {
            const double* first = state + cell(variable, k, i - kAround, nx, nz);
            value[variable] = between(first, 1);
            rough[variable] = damping * third(first, 1);
        }
        const double across = value[kAcross];
        const double whole = value[kDensity] + density[k + kAround];
        const double warm = value[kHeat] + heat[k + kAround];
        const double speed = across / whole;
        const double push = excess(value[kHeat], heat[k + kAround], pressure[k + kAround]);
        flux[face(kDensity, k, i, nx, nz)] = across + rough[kDensity];
        flux[face(kAcross, k, i, nx, nz)] = (across * speed + push) + rough[kAcross];
        flux[face(kUp, k, i, nx, nz)] = value[kUp] * speed + rough[kUp];
        flux[face(kHeat, k, i, nx, nz)] = warm * speed + rough[kHeat];
    }
}

// The background is given on the nz + 1 faces here.
extern "C" __global__ void flux_z(const double* state, const double* density, const double* heat,
                                  const double* pressure, double* flux, int nx, int nz, double damping) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int k = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < nx && k <= nz) {
        const size_t apart = nx + 2 * kAround;
        double value[kVariables], rough[kVariables];
        for (int variable = 0; variable < kVariables; ++variable) {
            const double* first = state + cell(variable, k - kAround, i, nx, nz);
            value[variable] = between(first, apart);
            rough[variable] = damping * third(first, apart);
        }
        const bool wall = k == 0 || k == nz;  // nothing goes through it; it only pushes back
        const double up = value[kUp];
        const double whole = value[kDensity] + density[k];
        const double warm = value[kHeat] + heat[k];
        const double speed = up / whole;
        const double push = excess(value[kHeat], heat[k], pressure[k]);
        flux[face(kDensity, k, i, nx, nz)] = wall ? 0.0 : up + rough[kDensity];
        flux[face(kAcross, k, i, nx, nz)] = wall ? 0.0 : value[kAcross] * speed + rough[kAcross];
        flux[face(kUp, k, i, nx, nz)] = wall ? push : (up * speed + push) + rough[kUp];
        flux[face(kHeat, k, i, nx, nz)] = wall ? 0.0 : warm * speed + rough[kHeat];
    }
}

// into = start + what flows in over `seconds`, and weight. `now` is the state that the fluxes are of. `apart` is the
// distance of a cell's faces in flux; lift, where there is one, an acceleration of each cell.
extern "C" __global__ void add_up(const double* start, const double* now, double* into, const double* flux,
                                  const double* density, const double* lift, int nx, int nz, int apart, double seconds,
                                  double width, double gravity) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int k = blockIdx.y * blockDim.y + threadIdx.y;
    if (i < nx && k < nz) {
        // Before anything is written: `into` may be any of the two others.
        const double heavier = now[cell(kDensity, k, i, nx, nz)];
        for (int variable = 0; variable < kVariables; ++variable) {
            const size_t mine = cell(variable, k, i, nx, nz);
            const size_t before = face(variable, k, i, nx, nz);
            double change = (flux[before] - flux[before + apart]) / width;
            if (variable == kUp) {
                change -= gravity * heavier;
                if (lift != nullptr) {
                    change += lift[static_cast<size_t>(k) * nx + i] * density[k + kAround];
                }
            }
            into[mine] = start[mine] + seconds * change;
        }
    }
}

__device__ constexpr int kRows = 64;  // of a column, for one thread

// Adds to the words of `sums` what tells one state from another, bit for bit; in whatever order it is added.
extern "C" __global__ void digest(const double* state, unsigned long long* sums, int words, int nx, int nz) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int begin = (blockIdx.y * blockDim.y + threadIdx.y) * kRows;
    if (i < nx && begin < nz) {
        unsigned long long sum = 0;
        for (int variable = 0; variable < kVariables; ++variable) {
            for (int k = begin; k < begin + kRows && k < nz; ++k) {
                const size_t mine = cell(variable, k, i, nx, nz);
                unsigned long long bits;
                memcpy(&bits, state + mine, sizeof(bits));
                bits = (bits ^ (mine * 0x9E3779B97F4A7C15ull)) * 0xBF58476D1CE4E5B9ull;
                bits = (bits ^ (bits >> 32)) * 0x94D049BB133111EBull;
                sum += bits ^ (bits >> 29);
            }
        }
        atomicAdd(sums + (blockIdx.x + blockIdx.y * gridDim.x) % words, sum);
    }
}

extern "C" __global__ void zero(unsigned long long* sums, int words) {
    const int each = blockIdx.x * blockDim.x + threadIdx.x;
    if (each < words) {
        sums[each] = 0;
    }
}

// What the digest gave, to where the host sees it.
extern "C" __global__ void show(const unsigned long long* sums, unsigned long long* host, int words) {
    const int each = blockIdx.x * blockDim.x + threadIdx.x;
    if (each < words) {
        host[each] = sums[each];
    }
}

// The state of the beginning again.
extern "C" __global__ void renew(const double* first, double* state, unsigned long long cells) {
    const unsigned long long threads = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long each = blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x; each < cells;
         each += threads) {
        state[each] = first[each];
    }
}
