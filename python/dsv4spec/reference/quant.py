# SPDX-License-Identifier: Apache-2.0
"""The number formats of DeepSeek-V4 checkpoints and caches: E8M0 scales, FP8 E4M3 in blocks, packed FP4 (E2M1) and the
584-byte FP8 page. Every quantiser makes its codes with the scale *as stored*, the one they are read back with."""
import torch

E4M3_MAX = 448.0
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # magnitude of codes 0..7; bit 3 is the sign


# ------------------------------------------------------------------------------------------------------ E8M0
def e8m0_decode(scale: torch.Tensor) -> torch.Tensor:
    """float32 of E8M0 scales (``float8_e8m0fnu`` or their uint8 bytes): 2^(byte - 127); 0 is 2^-127, 255 is NaN."""
    byte = scale.view(torch.uint8).to(torch.int32)
    bits = byte << 23
    bits = torch.where(byte == 0, 0x00400000, bits)  # 2^-127 is subnormal in float32
    return torch.where(byte == 255, 0x7FC00000, bits).view(torch.float32)


def e8m0_round_up(scale: torch.Tensor) -> torch.Tensor:
    """uint8 bytes of the smallest powers of two not below the positive float32 ``scale``."""
    bits = scale.to(torch.float32).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    exponent = torch.where(bits <= 0x00400000, 0, exponent)  # up to 2^-127, which is subnormal in float32
    return exponent.clamp(0, 254).to(torch.uint8)


def e8m0_encode(scale: torch.Tensor) -> torch.Tensor:
    """uint8 bytes of scales that already are powers of two.

    Raises:
        ValueError: a scale that E8M0 cannot hold exactly (reads the tensor on the host).
    """
    byte = e8m0_round_up(scale)
    wrong = ~(e8m0_decode(byte) == scale)
    if bool(wrong.any()):
        raise ValueError(f"e8m0_encode: scale: expected powers of two, got {scale[wrong].flatten()[0].item()}")
    return byte


# -------------------------------------------------------------------------------------------- FP8, square blocks
def _per_element(scale: torch.Tensor, rows: int, columns: int, block: int) -> torch.Tensor:
    wide = scale.repeat_interleave(block, -2).repeat_interleave(block, -1)
    return wide[..., :rows, :columns]


def fp8_block_quant(weight: torch.Tensor, block: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """(E4M3 codes [.., N, K], E8M0 bytes [.., ceil(N/block), ceil(K/block)]) of a float weight [.., N, K].

    The scale of a block is the power of two at or above amax / 448 (1 for a block of zeros); edge blocks may be cut.
    """
    rows, columns = weight.shape[-2:]
    pad = (0, -columns % block, 0, -rows % block)
    padded = torch.nn.functional.pad(weight.to(torch.float32), pad)
    tiles = padded.unflatten(-1, (-1, block)).unflatten(-3, (-1, block))  # [.., NB, block, KB, block]
    amax = tiles.abs().amax((-3, -1))
    scale = e8m0_round_up(torch.where(amax == 0, E4M3_MAX, amax) / E4M3_MAX)
    codes = weight.to(torch.float32) / _per_element(e8m0_decode(scale), rows, columns, block)
    return codes.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def fp8_block_dequant(codes: torch.Tensor, scale: torch.Tensor, block: int = 128) -> torch.Tensor:
    """float32 [.., N, K] of E4M3 codes and their E8M0 grid [.., ceil(N/block), ceil(K/block)] ."""
    rows, columns = codes.shape[-2:]
    return codes.to(torch.float32) * _per_element(e8m0_decode(scale), rows, columns, block)


# ------------------------------------------------------------------------------------------------ FP4, packed by two
def fp4_unpack(packed: torch.Tensor) -> torch.Tensor:
    """float32 [.., 2K] of packed E2M1 pairs [.., K] (int8 or uint8): low nibble = even column, high nibble = odd."""
    byte = packed.view(torch.uint8).to(torch.int64)
    codes = torch.stack((byte & 15, byte >> 4), -1).flatten(-2)
    magnitude = torch.tensor(FP4_VALUES, device=packed.device)[codes & 7]
    return torch.where(codes >= 8, -magnitude, magnitude)


def fp4_dequant(packed: torch.Tensor, scale: torch.Tensor, group: int = 32) -> torch.Tensor:
    """float32 [.., 2K] of packed FP4 and one E8M0 scale per ``group`` unpacked values along K ([.., ceil(2K/group)])."""
    values = fp4_unpack(packed)
    return values * e8m0_decode(scale).repeat_interleave(group, -1)[..., :values.shape[-1]]


def fp4_quant(weight: torch.Tensor, group: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """(int8 pairs [.., K/2], E8M0 bytes [.., K/group]) of a float weight [.., K]; K is a multiple of ``group``.

    The scale of a group is the power of two at or above amax / 6 (1 for zeros). Ties go to the even code.
    """
    groups = weight.to(torch.float32).unflatten(-1, (-1, group))
    amax = groups.abs().amax(-1)
    scale = e8m0_round_up(torch.where(amax == 0, 6.0, amax) / 6.0)
    x = groups / e8m0_decode(scale)[..., None]
    table = torch.tensor(FP4_VALUES, device=weight.device)
    middle = (table[1:] + table[:-1]) / 2
    a = x.abs().contiguous()
    low, high = torch.bucketize(a, middle), torch.bucketize(a, middle, right=True)
    code = torch.where(low % 2 == 0, low, high)  # they differ only on a tie, by one
    code = (code + torch.where(x < 0, 8, 0)).flatten(-2).unflatten(-1, (-1, 2)).to(torch.uint8)
    return (code[..., 0] | code[..., 1] << 4).view(torch.int8), scale


# ------------------------------------------------------------------------------- the FP8 KV cache (584 bytes a token)
NOPE, ROPE, KV_GROUP = 448, 64, 64
ROW_BYTES = NOPE + 2 * ROPE          # 576: E4M3 codes, then the rotated part in bf16
SCALE_BYTES = 8                      # 7 E8M0 bytes (one per 64 dims) and one of padding


def kv_scale(amax: torch.Tensor) -> torch.Tensor:
    """E8M0 bytes of a KV group: 2^ceil(log2(max(amax, 1e-4) / 448))."""
    return e8m0_round_up(amax.to(torch.float32).clamp(min=1e-4) / E4M3_MAX)


def kv_page_bytes(page: int) -> int:
    """Bytes of a page of ``page`` tokens: all rows, then all scales, padded to a multiple of a row."""
    return -(-page * (ROW_BYTES + SCALE_BYTES) // ROW_BYTES) * ROW_BYTES


def kv_row_offset(i: int) -> int:
    """Byte of row ``i``'s data inside its page."""
    return ROW_BYTES * i


def kv_scale_offset(i: int, page: int) -> int:
    """Byte of row ``i``'s scales inside its page: not beside the row, but after all rows of the page."""
    return ROW_BYTES * page + SCALE_BYTES * i


def kv_page_pack(kv: torch.Tensor) -> torch.Tensor:
    """uint8 [kv_page_bytes(P)] of the KV rows [P, 512] of one page (nope dims in E4M3, the last 64 in bf16)."""
    page = kv.shape[0]
    groups = kv[:, :NOPE].to(torch.float32).unflatten(1, (-1, KV_GROUP))
    scale = kv_scale(groups.abs().amax(-1))
    codes = (groups / e8m0_decode(scale)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    rope = kv[:, NOPE:].to(torch.bfloat16).contiguous()
    rows = torch.cat((codes.flatten(1).view(torch.uint8), rope.view(torch.uint8)), 1)
    scales = torch.nn.functional.pad(scale, (0, SCALE_BYTES - scale.shape[1]))
    used = torch.cat((rows.flatten(), scales.flatten()))
    return torch.nn.functional.pad(used, (0, kv_page_bytes(page) - used.numel()))


def kv_page_unpack(page_bytes: torch.Tensor, page: int) -> torch.Tensor:
    """float32 [P, 512] of a packed page."""
    rows = page_bytes[:ROW_BYTES * page].view(page, ROW_BYTES)
    scales = page_bytes[ROW_BYTES * page:][:SCALE_BYTES * page].view(page, SCALE_BYTES)[:, :NOPE // KV_GROUP]
    codes = rows[:, :NOPE].contiguous().view(torch.float8_e4m3fn).to(torch.float32).unflatten(1, (-1, KV_GROUP))
    rope = rows[:, NOPE:].contiguous().view(torch.bfloat16).to(torch.float32)
    return torch.cat(((codes * e8m0_decode(scales.contiguous())[..., None]).flatten(1), rope), 1)
