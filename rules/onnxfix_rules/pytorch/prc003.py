"""Mask scores of half precision by their lowest finite value, not by -inf.

A row that is masked everywhere is NaN after the Softmax with -inf, and uniform with finfo.min; other rows keep their
values. A mask made in float32 for scores of half precision needs -65504, too, not -3.4e38.
"""

import torch


class Before(torch.nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(~mask, float("-inf")).softmax(-1)


class After(torch.nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)


def inputs():
    return torch.randn(2, 4, 4).half(), torch.ones(4, 4).tril().bool()
