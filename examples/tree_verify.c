/* SPDX-License-Identifier: Apache-2.0
 *
 * A verify step in C99: build two draft trees, walk them along the target's choices, and lay out the positions of the
 * compressed entries. Every number is checked against an example worked out by hand.
 *
 *   export PKG_CONFIG_PATH="$(python -m dsv4spec --pkgconfig-dir)"
 *   eval "cc -std=c99 tree_verify.c -o tree_verify $(pkg-config --cflags --libs dsv4spec)" && ./tree_verify
 */
#include <dsv4spec/dsv4spec.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, N = 6, STEPS = 3, TOPK = 2 };

static int failures = 0;

/* A tensor in the CPU's memory. `shape` must live as long as the tensor. */
static DLTensor tensor(void* data, uint8_t code, uint8_t bits, int32_t ndim, int64_t* shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = code;
  t.dtype.bits = bits;
  t.dtype.lanes = 1;
  t.shape = shape; /* strides NULL: C-contiguous */
  return t;
}
static DLTensor i64(int64_t* data, int32_t ndim, int64_t* shape) { return tensor(data, kDLInt, 64, ndim, shape); }
static DLTensor i32(int32_t* data, int32_t ndim, int64_t* shape) { return tensor(data, kDLInt, 32, ndim, shape); }

static void check_status(const char* what, dsv4_status status, dsv4_status expected) {
  if (status == expected) return;
  printf("%s: status %d, expected %d: %s\n", what, (int)status, (int)expected, dsv4_last_error());
  ++failures;
}
static void check64(const char* what, const int64_t* got, const int64_t* expected, int n) {
  int i;
  printf("%-14s", what);
  for (i = 0; i < n; ++i) {
    printf(" %" PRId64, got[i]);
    if (got[i] != expected[i]) {
      printf(" (expected %" PRId64 ")", expected[i]);
      ++failures;
    }
  }
  printf("\n");
}
static void check32(const char* what, const int32_t* got, const int64_t* expected, int n) {
  int64_t wide[16];
  int i;
  for (i = 0; i < n; ++i) wide[i] = got[i];
  check64(what, wide, expected, n);
}

int main(void) {
  int64_t b_[] = {B}, bn_[] = {B, N}, rows_[] = {B * N}, drafts_[] = {B, N - 1};
  int64_t parents_[] = {B, TOPK * (STEPS - 1) + 1}, path_[] = {B, STEPS + 1};

  /* What the draft steps left: candidates are numbered flat, the chosen ones in ascending order. */
  int64_t bonus_data[] = {100, 200}, live_data[] = {7, 3};
  int64_t parent_data[] = {-1, 0, 1, 2, 4, -1, 0, 1, 2, 3};
  int64_t selected_data[] = {0, 1, 2, 4, 6, 0, 2, 3, 6, 8};
  int64_t draft_data[] = {11, 12, 21, 23, 31, 51, 61, 62, 71, 73};
  DLTensor bonus = i64(bonus_data, 1, b_), live = i64(live_data, 1, b_), parents = i64(parent_data, 2, parents_);
  DLTensor selected = i64(selected_data, 2, drafts_), drafts = i64(draft_data, 2, drafts_);

  /* ------------------------------------------------------------------------------------------ build_tree */
  int64_t token_data[B * N], position_data[B * N], index_data[B * N], next_data[B * N], sibling_data[B * N];
  uint8_t mask_data[B * N];
  DLTensor tokens = i64(token_data, 2, bn_), positions = i64(position_data, 1, rows_);
  DLTensor index = i64(index_data, 2, bn_), next = i64(next_data, 2, bn_), sibling = i64(sibling_data, 2, bn_);
  DLTensor mask = tensor(mask_data, kDLUInt, 8, 2, bn_);

  dsv4_build_tree_args tree;
  memset(&tree, 0, sizeof tree);
  tree.struct_size = sizeof tree;
  tree.bonus_tokens = &bonus;
  tree.parent_list = &parents;
  tree.selected_index = &selected;
  tree.draft_tokens = &drafts;
  tree.live_seq_lens = &live;
  tree.tokens = &tokens;
  tree.positions = &positions;
  tree.retrieve_index = &index;
  tree.next_token = &next;
  tree.next_sibling = &sibling;
  tree.tree_mask = &mask;
  tree.topk = TOPK;
  tree.num_steps = STEPS;
  tree.num_draft_tokens = N;
  tree.mask_mode = DSV4_TREE_MASK_QLEN_BITS;
  check_status("build_tree", dsv4_build_tree(&tree, NULL), DSV4_OK);
  {
    static const int64_t t[] = {100, 11, 12, 21, 23, 31, 200, 51, 61, 62, 71, 73};
    static const int64_t p[] = {7, 8, 8, 9, 9, 10, 3, 4, 5, 5, 6, 6};
    static const int64_t n[] = {1, 3, 4, 5, -1, -1, 1, 2, 4, 5, -1, -1};
    static const int64_t s[] = {-1, 2, -1, -1, -1, -1, -1, -1, 3, -1, -1, -1};
    static const int64_t m[] = {1, 3, 5, 11, 21, 43, 1, 3, 7, 11, 23, 43};
    int32_t bits[B * N];
    int i;
    for (i = 0; i < B * N; ++i) bits[i] = mask_data[i];
    check64("tokens", token_data, t, B * N);
    check64("positions", position_data, p, B * N);
    check64("next_token", next_data, n, B * N);
    check64("next_sibling", sibling_data, s, B * N);
    check32("mask bits", bits, m, B * N);
  }

  /* ---------------------------------------------------------------------------------- verify_tree_greedy */
  int64_t target_data[B * N] = {12, 999, 999, 999, 999, 999, 51, 62, 999, 999, 999, 999};
  int32_t predict_data[B * N], path_data[B * (STEPS + 1)], count_data[B];
  DLTensor target = i64(target_data, 2, bn_), predicts = i32(predict_data, 1, rows_), path = i32(path_data, 2, path_);
  DLTensor count = i32(count_data, 1, b_);

  dsv4_verify_tree_greedy_args walk;
  memset(&walk, 0, sizeof walk);
  walk.struct_size = sizeof walk;
  walk.candidates = &tokens;
  walk.retrieve_index = &index;
  walk.next_token = &next;
  walk.next_sibling = &sibling;
  walk.target_predict = &target;
  walk.predicts = &predicts;
  walk.accept_index = &path;
  walk.accept_token_num = &count;
  walk.num_steps = STEPS;
  check_status("verify_tree_greedy", dsv4_verify_tree_greedy(&walk, NULL), DSV4_OK);
  {
    static const int64_t p[] = {12, -1, 999, -1, -1, -1, 51, 62, -1, 999, -1, -1};
    static const int64_t a[] = {0, 2, -1, -1, 6, 7, 9, -1};
    static const int64_t c[] = {1, 2};
    check32("predicts", predict_data, p, B * N);
    check32("accept_index", path_data, a, B * (STEPS + 1));
    check32("accepted", count_data, c, B);
  }

  /* --------------------------------------------- verify_positions_padding: 3 requests of 4 rows, ratio 4 */
  int64_t window_data[] = {126, 127, 128, 129, 7, 8, 9, 10, 0, 1, 2, 3}, lens_data[] = {126, 7, 0}, out_data[6];
  int64_t t_[] = {12}, three_[] = {3}, six_[] = {6};
  DLTensor window = i64(window_data, 1, t_), lens = i64(lens_data, 1, three_), out = i64(out_data, 1, six_);

  dsv4_verify_positions_padding_args pad;
  memset(&pad, 0, sizeof pad);
  pad.struct_size = sizeof pad;
  pad.positions = &window;
  pad.live_seq_lens = &lens;
  pad.out = &out;
  pad.num_draft_tokens = 4;
  pad.ratio = 4;
  check_status("verify_positions_padding", dsv4_verify_positions_padding(&pad, NULL), DSV4_OK);
  {
    static const int64_t expected[] = {124, 4, 0, 0, 0, 0};
    check64("c4 positions", out_data, expected, 6);
  }

  /* A call outside the contract writes nothing, and says what was expected. */
  pad.num_draft_tokens = 5;
  check_status("a wrong call", dsv4_verify_positions_padding(&pad, NULL), DSV4_INVALID_ARGUMENT);
  printf("refused: %s\n", dsv4_last_error());

  printf("dsv4spec %s, ABI %" PRId32 ": %s\n", dsv4_version(), dsv4_abi_version(), failures ? "WRONG" : "all as expected");
  return failures != 0;
}
