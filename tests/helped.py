# SPDX-License-Identifier: Apache-2.0
"""A random NextN layer that is right in most places, without a look at a tensor from the host."""
import torch


class Helped:
    """NextN, with the right token's logit raised where (cache row + position) is no multiple of ``wrong_every``. States
    carry (cache row, position) behind their hc*d values.

    Args:
        sequences: prompt and expected output of the request in each cache row.
    """

    def __init__(self, nextn, sequences, wrong_every: int = 3):
        self.nextn, self.width, self.wrong_every = nextn, nextn.config.nextn_hidden_size, wrong_every
        self.right = torch.full((len(sequences), max(map(len, sequences)) + 64), -1)
        for row, tokens in enumerate(sequences):
            self.right[row, :len(tokens)] = torch.tensor(tokens)

    def forward(self, batch, cache, hidden, picked=None):
        out = self.nextn.forward(batch, cache, hidden[:, :self.width].contiguous(), picked)
        number = torch.arange(len(batch.positions), device=self.right.device)
        owner = (number[:, None] >= batch.query_start_loc[1:]).sum(1).clamp_max(len(batch.rows) - 1)
        tags = torch.stack([batch.rows[owner], batch.positions], 1)
        tags = tags if picked is None else tags.index_select(0, picked)
        return torch.cat([out, tags.to(out.dtype)], 1)

    def logits(self, state):
        logits = self.nextn.logits(state[:, :self.width].contiguous())
        row, position = state[:, self.width:].nan_to_num(0).long().unbind(1)
        token = self.right[row.clamp(0, len(self.right) - 1), (position + 2).clamp(0, self.right.shape[1] - 1)]
        right = (row >= 0) & (token >= 0) & ((row + position) % self.wrong_every != 0)
        return logits.scatter_add(1, token.clamp_min(0)[:, None], torch.where(right, 100.0, 0.0)[:, None])
