# SPDX-License-Identifier: Apache-2.0
"""What ``bench ops`` measures: every op at the sizes of DeepSeek-V4 Flash and Pro, with the bytes that it must move and the
floating-point operations that it must do at least. Data are random; their values change no kernel's work."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator

import torch

HC, N = 4, 4  # residual streams; rows of a verify window
MEMORY, HALF, QUICK = "memory", "half", "quick"  # goals, see bench_ops.GOALS


@dataclass(frozen=True)
class Size:
    name: str
    d: int
    heads: int
    head_dim: int = 512
    rope: int = 64
    window: int = 128
    page: int = 64
    few: tuple[int, ...] = (1, 4, 16, 64)   # tokens of a decode or verify step
    many: int = 4096                        # tokens of a prefill
    batches: tuple[int, ...] = (1, 64, 512)
    length: int = 2000                      # committed tokens of a request

    def __str__(self):
        return self.name


SIZES = {size.name: size for size in (
    Size("flash", 4096, 64), Size("pro", 7168, 128),
    Size("tiny", 128, 2, 64, 16, 16, 4, few=(1, 3), many=20, batches=(1, 2), length=37))}


@dataclass(frozen=True)
class Case:
    op: str
    size: Size
    label: str
    make: Callable[[torch.device], tuple[tuple, dict]]  # one set of arguments, fresh memory
    bytes: int
    flops: int = 0
    goal: str | None = None


def cases(size: Size) -> Iterator[Case]:
    yield from _fuse(size)
    yield from _mhc(size)
    yield from _attention(size)
    yield from _integers(size)


def _random(device, *shape, dtype=torch.bfloat16, scale=1.0):
    return (torch.randn(shape, device=device) * scale).to(dtype)


def _fuse(size: Size):
    d = size.d

    def make(T, weights):
        def arguments(device):
            def matrix():
                w = _random(device, d, d, scale=d ** -0.5, dtype=torch.float32)
                return (w * 64).to(torch.float8_e4m3fn) if weights == "e4m3" else w.bfloat16()

            args = (_random(device, T, d), _random(device, T, HC * d), _random(device, d), _random(device, d), matrix(),
                    matrix())
            if weights != "e4m3":
                return args, dict(eps=1e-6)
            blocks = -(-d // 128)
            scales = [torch.full((blocks, blocks), 121, dtype=torch.uint8, device=device) for _ in range(2)]  # 2^-6
            return args, dict(eps=1e-6, e_proj_scale=scales[0], h_proj_scale=scales[1])

        return arguments

    for T in (*size.few, size.many // 4):
        for weights, width in (("bf16", 2), ("e4m3", 1)):
            yield Case("nextn_fuse_hidden", size, f"T={T} {weights}", make(T, weights),
                       2 * d * d * width + 2 * T * d * (1 + 2 * HC), 2 * T * d * d * (1 + HC),
                       MEMORY if T <= 16 else None)


def _mhc(size: Size):
    d, columns = size.d, (2 + HC) * HC
    site = dict(rms_eps=1e-6, hc_eps=1e-6)

    def weights(device, n, scales):
        return (_random(device, n, HC * d, dtype=torch.float32, scale=(HC * d) ** -0.5),
                _random(device, n, dtype=torch.float32), torch.ones(scales, device=device))

    def mix(device, T):
        return (_random(device, T, d), _random(device, T, HC, d), torch.rand(T, HC, device=device),
                torch.rand(T, HC, HC, device=device))

    for T in (*size.few[::2], size.many):
        row, goal = 2 * T * d, MEMORY if T >= 4096 else None
        project, join = 4 * columns * HC * d, 2 * T * HC * d
        norm = dict(sinkhorn_iters=20)
        yield Case("mhc_pre", size, f"T={T}", lambda device, T=T: (
            (_random(device, T, HC, d), *weights(device, columns, 3)), {**site, **norm, "norm_weight": _random(device, d)}),
            (HC + 1) * row + project, join * (columns + 2), goal)
        yield Case("mhc_post", size, f"T={T}", lambda device, T=T: (mix(device, T), {}), (2 * HC + 1) * row,
                   join * (HC + 1), goal)
        yield Case("mhc_post_pre", size, f"T={T}", lambda device, T=T: (
            (*mix(device, T), *weights(device, columns, 3)), {**site, **norm, "norm_weight": _random(device, d)}),
            (2 * HC + 2) * row + project, join * (columns + HC + 3), goal)
        yield Case("mhc_head", size, f"T={T}", lambda device, T=T: (
            (_random(device, T, HC, d), *weights(device, HC, 1)), {**site, "norm_weight": _random(device, d)}),
            (HC + 1) * row + 4 * HC * HC * d, join * (HC + 2), goal)


def _table(size: Size, device, B: int, rows: int):
    """Pages of the window and of the new rows; the rest of a request's pages is gone."""
    first, last = max(0, size.length - size.window) // size.page, (size.length + rows - 1) // size.page
    pages = last - first + 1
    table = torch.full((B, last + 1), -1, dtype=torch.int32, device=device)
    table[:, first:] = torch.randperm(B * pages, device=device).view(B, pages).int()
    return table, B * pages


def _attention(size: Size):
    D, H = size.head_dim, size.heads

    def angles(device):
        turns = torch.arange(size.length + 4096, device=device)[:, None] * 1e4 ** (
            -torch.arange(size.rope // 2, device=device) * 2 / size.rope)
        return torch.cat((turns.cos(), turns.sin()), 1)

    for T in (*size.few[::2], size.many):
        positions = lambda device, T=T: torch.arange(T, device=device)  # noqa: E731
        yield Case("q_norm_rope", size, f"T={T}", lambda device, T=T, p=positions: (
            (_random(device, T, H, D), angles(device), p(device)), dict(eps=1e-6)), 4 * T * H * D, 4 * T * H * D)
        yield Case("swa_store_kv", size, f"T={T}", lambda device, T=T, p=positions: (
            (_random(device, T, D), _random(device, D), angles(device), p(device),
             torch.randperm(2 * T, device=device)[:T], _random(device, -(-2 * T // size.page), size.page, D)), dict(eps=1e-6)),
            4 * T * D, 4 * T * D)

    def attend(B, rows, tree):
        def arguments(device):
            table, pages = _table(size, device, B, rows)
            start = torch.arange(B + 1, dtype=torch.int32, device=device) * rows
            lens = torch.full((B,), size.length + rows, dtype=torch.int32, device=device)
            args = (_random(device, B * rows, H, D), _random(device, pages, size.page, D), table, start, lens)
            kwargs = dict(window=size.window, scale=D ** -0.5, sink=_random(device, H, dtype=torch.float32),
                          cos_sin=angles(device))
            if tree:  # a binary tree: node j hangs below (j-1) // 2
                mask = torch.eye(rows, dtype=torch.bool)
                for j in range(1, rows):
                    mask[j] |= mask[(j - 1) // 2]
                kwargs["tree_mask"] = mask.to(device).expand(B, rows, rows).contiguous()
            return args, kwargs

        return arguments

    few, middle, many = size.batches[0], size.batches[1], size.batches[-1]
    for kind, B, rows, goal in (("decode", few, 1, None), ("decode", middle, 1, None), ("decode", many, 1, MEMORY),
                                ("verify", few, N, HALF), ("verify", middle, N, HALF), ("tree", middle, 16, None),
                                ("extend", few, 64, None)):
        keys = size.window + rows - 1
        yield Case("swa_paged_attention", size, f"{kind} B={B} rows={rows}", attend(B, rows, kind == "tree"),
                   2 * B * D * (keys + 2 * rows * H), 4 * D * H * B * rows * size.window, goal)


def _integers(size: Size):
    """Their bytes are nothing: what counts is the launch."""
    from . import ops

    def i32(device, B, value):
        return torch.full((B,), value, dtype=torch.int32, device=device)

    def tree(device, B):
        repeat = lambda *row: torch.tensor(row, device=device).repeat(B, 1)  # noqa: E731
        return ((torch.arange(B, device=device), repeat(-1, 0, 1), repeat(0, 1, 2, 4), repeat(20, 21, 22, 24),
                 i32(device, B, size.length)), dict(topk=2, num_steps=2, num_draft_tokens=5, status=i32(device, B, 0)))

    def greedy(device, B):
        args, kwargs = tree(device, B)
        tokens, _, retrieve, next_token, sibling, _ = ops.build_tree(*args, **kwargs)
        n = kwargs["num_draft_tokens"]
        predicted = torch.where(torch.rand(B, n, device=device) < 0.8, tokens.roll(-1, 1), 7)
        return (tokens, retrieve, next_token, sibling, predicted), dict(num_steps=2)

    def metadata(device, B):
        positions = (torch.arange(N, device=device) + size.length).repeat(B)
        pages = torch.arange(B, dtype=torch.int32, device=device)[:, None].repeat(1, size.length // (4 * size.page) + 2)
        return (positions, i32(device, B, size.length), pages, pages.clone(), N), dict(c4_page=size.page, c128_page=4)

    def beam(device, B):
        k = 2
        return (torch.rand(B * k, k, device=device), torch.arange(B * k * k, device=device).view(-1, k),
                torch.rand(B, k, device=device)), dict(step=1)

    def pages(device, B):
        prefix = i32(device, B, size.length)
        free = torch.arange(B, 3 * B, device=device)
        return (prefix, prefix + N, torch.arange(B, device=device) * size.page + (size.length - 1) % size.page, free), dict(
            extend_num_tokens=B * N, page_size=size.page, status=i32(device, 1, 0))

    def slots(device, B):
        table = torch.arange(B, dtype=torch.int32, device=device)[:, None].repeat(1, size.length // size.page + 2)
        return (table, i32(device, B, size.length)), dict(topk=1, num_steps=3, page_size=size.page)

    def moves(device, B):
        M = B * N
        source = torch.randperm(2 * M, device=device)
        return (_random(device, -(-2 * M // size.page), size.page, size.head_dim), source[:M], source[M:]), {}

    for B in (size.batches[0], size.batches[1], 2 * size.batches[-1]):
        makers = dict(verify_positions_padding=lambda device, B: (metadata(device, B)[0][:2],
                                                                  dict(num_draft_tokens=N, ratio=4)),
                      verify_metadata=metadata, select_draft_topk=beam, build_tree=tree, verify_tree_greedy=greedy,
                      alloc_extend=pages, assign_draft_slots=slots)
        for op, make in makers.items():
            yield Case(op, size, f"B={B}", lambda device, make=make, B=B: make(device, B), 100 * B, 0, QUICK)
        yield Case("move_accepted_kv", size, f"B={B}", lambda device, B=B: moves(device, B), 4 * B * N * size.head_dim,
                   goal=QUICK if B == 1 else None)
