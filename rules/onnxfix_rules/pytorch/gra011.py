"""Read at most one size of a tensor, and write -1 or a number for the others.

The legacy exporter writes a Shape and a Gather for each size that is read. The dynamo exporter merges equal nodes.
"""

import torch

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch", 2: "length"}}}


class Before(torch.nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], 12)


class After(torch.nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).reshape(x.shape[0], -1, 12)


def inputs():
    return (torch.rand(2, 4, 5, 3),)
