# SPDX-License-Identifier: Apache-2.0
import json

import torch

import tiny_checkpoints as tiny
from dsv4spec.cli import main

RAW = tiny.raw_config()
TENSORS = tiny.random_tensors(RAW)


def test_lists_layers_dtypes_and_sizes(tmp_path, capsys):
    config, stored, _ = tiny.quantise(RAW, TENSORS)
    tiny.write(tmp_path, config, stored, shards=2)
    assert main(["inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert "in 2 file(s)" in out and "NextN layer: mtp.0" in out and "missing: nothing" in out
    for name, kind in (("layers.0", "window, hash"), ("layers.1", "C4, top-k"), ("layers.2", "C128, top-k")):
        assert any(line[:1] == [name] and " ".join(line[1:3]) == kind for line in lines), out
    assert "F8_E4M3" in out and "I8" in out and "F8_E8M0" in out
    assert main(["inspect", "--json", str(tmp_path)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tensors"] == len(stored) == sum(p["tensors"] for p in report["parts"])
    assert report["bytes"] == sum(t.numel() * t.element_size() for t in stored.values())


def test_says_what_is_missing_and_what_is_not_used(tmp_path, capsys):
    tensors = {n: t for n, t in TENSORS.items() if not n.startswith("mtp.")} | {"extra": torch.ones(2)}
    del tensors["layers.1.attn.attn_sink"]
    assert main(["inspect", str(tiny.write(tmp_path, RAW, tensors))]) == 1
    out = capsys.readouterr().out
    assert "NextN layer: absent" in out and "missing: layers.1.attn.attn_sink" in out and "not used: extra" in out


def test_no_checkpoint_is_one_line(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    streams = capsys.readouterr()
    assert streams.out == "" and streams.err.count("\n") == 1 and "config.json: cannot be read" in streams.err
