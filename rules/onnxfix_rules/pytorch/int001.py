"""Take sizes that never change from the configuration, not from a tensor's shape.

If one axis is dynamic, the legacy exporter computes all sizes in the graph. The dynamo exporter knows which sizes are
fixed, and writes them as numbers.
"""

import torch

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}


class Before(torch.nn.Module):
    def forward(self, x):
        return x.relu().reshape(-1, x.shape[1] * x.shape[2])


class After(torch.nn.Module):
    channels, length = 4, 8

    def forward(self, x):
        return x.relu().reshape(-1, self.channels * self.length)


def inputs():
    return (torch.rand(2, 4, 8),)
