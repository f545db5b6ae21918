// CartPoles stepped as fast as C can: what `cargo xtask bench collector` compares the engine with.
//
// Arguments: environments, frames of a batch, batches, `libm` or `polynomial` for the sine. Each byte of the input asks for the batches, which
// are collected into the same memory, and is answered by the nanoseconds of processor time that they took, 8 bytes. Compiled with
// `-O3 -march=native -fno-math-errno -fno-trapping-math`. The columns are those of a windrow batch: 58 bytes a frame.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LANES 64

// `[time][env]`, 4 numbers an observation.
static float *obs, *next_obs, *reward;
static int64_t *action, *traj_ids;
static uint8_t *terminated, *truncated, *done, *root_flags;

// One column a number of the state.
struct poles {
    double x[LANES], v[LANES], theta[LANES], omega[LANES];
    uint64_t noise[LANES];
    int64_t id[LANES];
    int32_t steps[LANES];
    int64_t next_id;
};

static struct poles kept;

static inline uint64_t bits(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline double start(struct poles *p, int env) {
    return ((double)(bits(&p->noise[env]) >> 11) * 0x1p-53 - 0.5) * 0.1;
}

static inline void begin(struct poles *p, int env) {
    p->x[env] = start(p, env);
    p->v[env] = start(p, env);
    p->theta[env] = start(p, env);
    p->omega[env] = start(p, env);
    p->steps[env] = 0;
    p->id[env] = p->next_id++;
}

static inline void observe(const struct poles *p, float *restrict to, int envs) {
    for (int env = 0; env < envs; env++) {
        to[4 * env] = (float)p->x[env];
        to[4 * env + 1] = (float)p->v[env];
        to[4 * env + 2] = (float)p->theta[env];
        to[4 * env + 3] = (float)p->omega[env];
    }
}

// By the library, or by series within 2 units in the last place where |angle| < 0.3.
static inline void sines(const double *angles, double *sine, double *cosine, int envs, int exact) {
    for (int env = 0; env < envs; env++) {
        double a = angles[env], z = a * a;
        if (exact) {
            sine[env] = sin(a);
            cosine[env] = cos(a);
        } else {
            sine[env] = a + a * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 - z / 39916800))));
            cosine[env] = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600)))));
        }
    }
}

static inline __attribute__((always_inline)) void collect(int envs, int frames, int exact) {
    struct poles p = kept;
    memset(root_flags, 0, 3 * (size_t)frames);
    for (int row = 0; row < frames; row += envs) {
        double force[LANES], sine[LANES], cosine[LANES];
        observe(&p, obs + 4 * row, envs);
        for (int env = 0; env < envs; env++) {
            int64_t right = (int64_t)(bits(&p.noise[env]) >> 63);
            action[row + env] = right;
            force[env] = right ? 10.0 : -10.0;
        }
        sines(p.theta, sine, cosine, envs, exact);
        for (int env = 0; env < envs; env++) {
            double s = sine[env], c = cosine[env], w = p.omega[env];
            double temp = (force[env] + 0.05 * (w * w) * s) / 1.1;
            double alpha = (9.8 * s - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * (c * c) / 1.1));
            double accel = temp - 0.05 * alpha * c / 1.1;
            p.x[env] += 0.02 * p.v[env];
            p.v[env] += 0.02 * accel;
            p.theta[env] += 0.02 * w;
            p.omega[env] += 0.02 * alpha;
        }
        observe(&p, next_obs + 4 * row, envs);
        uint8_t *restrict over = done + row, *restrict ended = terminated + row, *restrict cut = truncated + row;
        uint8_t any = 0;
        for (int env = 0; env < envs; env++) {
            p.steps[env]++;
            reward[row + env] = 1;
            traj_ids[row + env] = p.id[env];
            ended[env] = (fabs(p.x[env]) > 2.4) | (fabs(p.theta[env]) > 0.20943951023931953);
            cut[env] = p.steps[env] >= 500;
            over[env] = ended[env] | cut[env];
            any |= over[env];
        }
        if (any)
            for (int env = 0; env < envs; env++)
                if (over[env]) begin(&p, env);
    }
    kept = p;
}

static void *column(size_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) exit(2);
    return memset(memory, 0, bytes);
}

static uint64_t processor_time(void) {
    struct timespec now;
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now)) exit(2);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    int envs = atoi(argv[1]), frames = atoi(argv[2]), batches = atoi(argv[3]), exact = !strcmp(argv[4], "libm");
    if ((envs != 1 && envs != LANES) || frames <= 0 || frames % envs) return 2;
    size_t n = (size_t)frames;
    obs = column(16 * n), next_obs = column(16 * n), reward = column(4 * n), action = column(8 * n), traj_ids = column(8 * n);
    terminated = column(n), truncated = column(n), done = column(n), root_flags = column(3 * n);
    for (int env = 0; env < envs; env++) {
        kept.noise[env] = 0x9E3779B97F4A7C15u * (uint64_t)(env + 7) | 1;
        begin(&kept, env);
    }
    // The number of environments and the sine are constants in each of these.
    while (getchar() != EOF) {
        uint64_t start = processor_time();
        for (int batch = 0; batch < batches; batch++) {
            if (envs == 1 && exact) collect(1, frames, 1);
            else if (envs == 1) collect(1, frames, 0);
            else if (exact) collect(LANES, frames, 1);
            else collect(LANES, frames, 0);
        }
        uint64_t taken = processor_time() - start;
        fwrite(&taken, sizeof taken, 1, stdout);
        fflush(stdout);
    }
    return 0;
}
