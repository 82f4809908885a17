"""Declare only those axes dynamic whose size may change.

The weights of a convolution fix its number of channels. The legacy exporter declares any axis that dynamic_axes names;
the dynamo exporter refuses this one.
"""

import torch
from torch import nn

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"]}
BEFORE = {"dynamic_axes": {"x": {0: "batch", 1: "channels", 2: "height", 3: "width"}}}
AFTER = {"dynamic_axes": {"x": {0: "batch", 2: "height", 3: "width"}}}


class Before(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 3)

    def forward(self, x):
        return self.conv(x).relu()


class After(Before):
    pass


def inputs():
    return (torch.rand(1, 3, 8, 8),)
