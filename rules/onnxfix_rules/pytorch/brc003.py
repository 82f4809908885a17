"""Apply two masks one after the other instead of joining them.

A causal mask of queries and keys and a padding mask of batches and keys are both repeated when they are joined. The
scores already have all of these axes, so that each mask alone is broadcast to them.
"""

import torch


class Before(torch.nn.Module):
    def forward(self, scores, causal, padding):
        mask = causal & padding[:, None, None, :]
        return scores.masked_fill(~mask, -1e4).softmax(-1)


class After(torch.nn.Module):
    def forward(self, scores, causal, padding):
        scores = scores.masked_fill(~causal, -1e4)
        return scores.masked_fill(~padding[:, None, None, :], -1e4).softmax(-1)


def inputs():
    return (
        torch.rand(2, 3, 4, 4),
        torch.ones(1, 1, 4, 4).tril().bool(),
        torch.tensor([[True] * 4, [True] * 3 + [False]]),
    )
