"""Repeat a class token x.shape[0] times, not len(x) times.

The legacy exporter traces the module, and len(x) is a number in a trace: the traced batch becomes a constant of the
Tile. A size in x.shape stays dynamic. The dynamo exporter keeps both dynamic.
"""

import torch
from torch import nn

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}}


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.rand(1, 1, 8))

    def forward(self, x):
        return torch.cat([self.token.repeat(len(x), 1, 1), x], 1)


class After(Before):
    def forward(self, x):
        return torch.cat([self.token.repeat(x.shape[0], 1, 1), x], 1)


def inputs():
    return (torch.randn(3, 5, 8),)
