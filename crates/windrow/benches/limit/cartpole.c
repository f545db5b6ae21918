// CartPoles stepped as fast as C can: what `cargo xtask bench collector` compares the engine with.
//
// Arguments: environments, frames of a batch, batches, `random` actions or those of a `network`. Each byte of the input asks for the batches, which
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

static inline void sines(const double *angles, double *sine, double *cosine, int envs) {
    for (int env = 0; env < envs; env++) {
        sine[env] = sin(angles[env]);
        cosine[env] = cos(angles[env]);
    }
}

// A network 4-64-64-2 with tanh, whose weights are any. A row of a layer is eight vectors, which stay in registers.
#define WIDTH 64
typedef float vector __attribute__((vector_size(32)));
typedef int32_t whole __attribute__((vector_size(32)));
static vector first[4][WIDTH / 8], second[WIDTH][WIDTH / 8], biases[2][WIDTH / 8];
static float last[2][WIDTH];

static inline vector tanh_of(vector x) {
    // 1 - 2 / (e^2x + 1), with a series for the power of two: good to some 1e-7, not to the last place where x is small.
    vector y = x * 2.885390082f;
    whole out = (y > 120) | (y < -120), end = (whole)((vector){} + 120) | ((whole)y & INT32_MIN);
    y = (vector)((out & end) | (~out & (whole)y));
    whole k = __builtin_convertvector(y + 128.5f, whole) - 128;
    vector r = (y - __builtin_convertvector(k, vector)) * 0.69314718f;
    vector e = 1 + r * (1 + r * (0.5f + r * (1.6666667e-1f + r * (4.1666667e-2f + r * (8.3333333e-3f + r * 1.3888889e-3f)))));
    return 1 - 2 / (e * (vector)((k + 127) << 23) + 1);
}

static inline __attribute__((always_inline)) void layer(const float *in, int inputs, vector (*weights)[WIDTH / 8], const vector *bias, float *out) {
    vector sums[WIDTH / 8];
    memcpy(sums, bias, sizeof sums);
    for (int k = 0; k < inputs; k++)
#pragma GCC unroll 8
        for (int j = 0; j < WIDTH / 8; j++) sums[j] += in[k] * weights[k][j];
#pragma GCC unroll 8
    for (int j = 0; j < WIDTH / 8; j++) sums[j] = tanh_of(sums[j]);
    memcpy(out, sums, sizeof sums);
}

// The chance of a push to the right, for what each environment has observed.
static inline __attribute__((always_inline)) void chances(const float *seen, int envs, float *right) {
    for (int env = 0; env < envs; env++) {
        _Alignas(64) float one[WIDTH], two[WIDTH];
        layer(seen + 4 * env, 4, first, biases[0], one);
        layer(one, WIDTH, second, biases[1], two);
        vector difference = {};
        for (int j = 0; j < WIDTH; j += 8) {
            vector x, w0, w1;
            memcpy(&x, two + j, sizeof x), memcpy(&w0, last[0] + j, sizeof x), memcpy(&w1, last[1] + j, sizeof x);
            difference += x * (w0 - w1);
        }
        float sum = 0;
        for (int j = 0; j < 8; j++) sum += difference[j];
        right[env] = 1 / (1 + expf(sum));
    }
}

static inline __attribute__((always_inline)) void collect(int envs, int frames, int thinks) {
    struct poles p = kept;
    memset(root_flags, 0, 3 * (size_t)frames);
    for (int row = 0; row < frames; row += envs) {
        double force[LANES], sine[LANES], cosine[LANES];
        observe(&p, obs + 4 * row, envs);
        float chance[LANES];
        if (thinks) chances(obs + 4 * row, envs, chance);
        for (int env = 0; env < envs; env++) {
            uint64_t drawn = bits(&p.noise[env]);
            int64_t right = thinks ? (float)(drawn >> 40) * 0x1p-24f < chance[env] : (int64_t)(drawn >> 63);
            action[row + env] = right;
            force[env] = right ? 10.0 : -10.0;
        }
        sines(p.theta, sine, cosine, envs);
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
    int envs = atoi(argv[1]), frames = atoi(argv[2]), batches = atoi(argv[3]);
    int thinks = !strcmp(argv[4], "network");
    if ((envs != 1 && envs != LANES) || frames <= 0 || frames % envs) return 2;
    size_t n = (size_t)frames;
    obs = column(16 * n), next_obs = column(16 * n), reward = column(4 * n), action = column(8 * n), traj_ids = column(8 * n);
    terminated = column(n), truncated = column(n), done = column(n), root_flags = column(3 * n);
    for (int env = 0; env < envs; env++) {
        kept.noise[env] = 0x9E3779B97F4A7C15u * (uint64_t)(env + 7) | 1;
        begin(&kept, env);
    }
    uint64_t weights = 88172645463325252u;
    float *each[] = {(float *)first, (float *)second, (float *)biases, (float *)last};
    size_t sizes[] = {sizeof first, sizeof second, sizeof biases, sizeof last};
    for (int i = 0; i < 4; i++)
        for (size_t j = 0; j < sizes[i] / sizeof(float); j++) each[i][j] = (float)((double)(bits(&weights) >> 11) * 0x1p-53 - 0.5) * 0.25f;
    // The number of environments and the policy are constants in each of these.
    while (getchar() != EOF) {
        uint64_t start = processor_time();
        for (int batch = 0; batch < batches; batch++) {
            if (envs == 1 && thinks) collect(1, frames, 1);
            else if (envs == 1) collect(1, frames, 0);
            else if (thinks) collect(LANES, frames, 1);
            else collect(LANES, frames, 0);
        }
        uint64_t taken = processor_time() - start;
        fwrite(&taken, sizeof taken, 1, stdout);
        fflush(stdout);
    }
    return 0;
}
