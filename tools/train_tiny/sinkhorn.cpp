// SPDX-License-Identifier: Apache-2.0
// Sinkhorn normalisation of many 4x4 matrices, forward and backward, for training on CPUs. Matrices
// are stored [16, n] (entry-major), so that the lanes of a vector hold neighbouring tokens. The
// iterates are kept as row and column scalings of M = softmax(logits) + eps: row_i M_ij col_j.
#include <cmath>
#include <cstdint>

namespace {
constexpr int L = 16, H = 4, MAX = 64;
using Lanes = float[L];

struct Block {
    Lanes soft[H][H], m[H][H], row[MAX][H], col[MAX][H];

    void load(const float* x, int64_t n, int64_t at, int width) {
        for (int i = 0; i < H; i++) {
            Lanes top, sum;
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++)
                    soft[i][j][l] = l < width ? x[(i * H + j) * n + at + l] : 0.f;
            for (int l = 0; l < L; l++) {
                const auto& s = soft[i];
                top[l] = fmaxf(fmaxf(s[0][l], s[1][l]), fmaxf(s[2][l], s[3][l]));
                sum[l] = 0;
            }
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) sum[l] += soft[i][j][l] = expf(soft[i][j][l] - top[l]);
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) soft[i][j][l] /= sum[l];
        }
    }

    void solve(int iters, float eps) {
        for (int i = 0; i < H; i++)
            for (int l = 0; l < L; l++) row[0][i][l] = 1;
        for (int j = 0; j < H; j++)
            for (int l = 0; l < L; l++) {
                float sum = 0;
                for (int i = 0; i < H; i++) sum += m[i][j][l] = soft[i][j][l] + eps;
                col[0][j][l] = 1 / (sum + eps);
            }
        for (int t = 1; t < iters; t++) {
            for (int i = 0; i < H; i++)
                for (int l = 0; l < L; l++) {
                    float sum = 0, r = row[t - 1][i][l];
                    for (int j = 0; j < H; j++) sum += m[i][j][l] * col[t - 1][j][l];
                    row[t][i][l] = r / (r * sum + eps);
                }
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) {
                    float sum = 0, c = col[t - 1][j][l];
                    for (int i = 0; i < H; i++) sum += m[i][j][l] * row[t][i][l];
                    col[t][j][l] = c / (c * sum + eps);
                }
        }
    }
};
}  // namespace

extern "C" void sinkhorn_forward(const float* x, float* out, int64_t n, int iters, float eps) {
#pragma omp parallel for
    for (int64_t at = 0; at < n; at += L) {
        Block b;
        const int width = n - at < L ? int(n - at) : L;
        b.load(x, n, at, width);
        b.solve(iters, eps);
        for (int i = 0; i < H; i++)
            for (int j = 0; j < H; j++)
                for (int l = 0; l < width; l++)
                    out[(i * H + j) * n + at + l] =
                        b.row[iters - 1][i][l] * b.m[i][j][l] * b.col[iters - 1][j][l];
    }
}

// gx = gradient of the logits, given g = gradient of the result. d(col')/d(col) = eps / den^2 is
// dropped: the scalings forget their start; that changes gradients by about 1e-6 of their size.
extern "C" void sinkhorn_backward(const float* x, const float* g, float* gx, int64_t n, int iters,
                                  float eps) {
#pragma omp parallel for
    for (int64_t at = 0; at < n; at += L) {
        Block b;
        Lanes gm[H][H], grow[H] = {}, gcol[H] = {};
        const int width = n - at < L ? int(n - at) : L;
        b.load(x, n, at, width);
        b.solve(iters, eps);
        for (int i = 0; i < H; i++)
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) {
                    float up = l < width ? g[(i * H + j) * n + at + l] : 0.f;
                    float r = b.row[iters - 1][i][l], c = b.col[iters - 1][j][l], m = b.m[i][j][l];
                    gm[i][j][l] = up * r * c;
                    grow[i][l] += up * m * c;
                    gcol[j][l] += up * m * r;
                }
        for (int t = iters - 1; t >= 0; t--) {
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) {
                    float gs = -gcol[j][l] * b.col[t][j][l] * b.col[t][j][l];
                    for (int i = 0; i < H; i++) {
                        gm[i][j][l] += gs * b.row[t][i][l];
                        grow[i][l] += gs * b.m[i][j][l];
                    }
                    gcol[j][l] = 0;
                }
            if (t == 0) break;
            for (int i = 0; i < H; i++)
                for (int l = 0; l < L; l++) {
                    float gs = -grow[i][l] * b.row[t][i][l] * b.row[t][i][l];
                    for (int j = 0; j < H; j++) {
                        gm[i][j][l] += gs * b.col[t - 1][j][l];
                        gcol[j][l] += gs * b.m[i][j][l];
                    }
                    grow[i][l] = 0;
                }
        }
        for (int i = 0; i < H; i++) {
            Lanes dot = {};
            for (int j = 0; j < H; j++)
                for (int l = 0; l < L; l++) dot[l] += gm[i][j][l] * b.soft[i][j][l];
            for (int j = 0; j < H; j++)
                for (int l = 0; l < width; l++)
                    gx[(i * H + j) * n + at + l] = b.soft[i][j][l] * (gm[i][j][l] - dot[l]);
        }
    }
}
