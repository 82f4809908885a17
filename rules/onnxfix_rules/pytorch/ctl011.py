"""Slice without asking for the size first: a slice stops at the end by itself.

The legacy exporter writes a scripted branch on a size as an If between two lengths. It writes `x.squeeze(1)` of a
dynamic axis as an If between two ranks; `x[:, 0]` has none. The dynamo exporter writes an If in neither case.
"""

import torch

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch", 1: "length"}}}


@torch.jit.script
def truncate(x, limit: int):
    if x.shape[1] > limit:
        x = x[:, :limit]
    return x


class Before(torch.nn.Module):
    def forward(self, x):
        return truncate(x, 4).softmax(1)


class After(torch.nn.Module):
    def forward(self, x):
        return x[:, :4].softmax(1)


def inputs():
    return (torch.rand(2, 6, 3),)
