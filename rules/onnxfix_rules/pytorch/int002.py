"""Write -1 for the only dynamic size of a view, and numbers for the others.

If one axis is dynamic, the legacy exporter computes the view's whole shape in the graph. The dynamo exporter writes
such a constant itself.
"""

import torch

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}


class Before(torch.nn.Module):
    def forward(self, x):
        batch, length, width = x.shape
        return x.relu().view(batch, length, 2, width // 2)


class After(torch.nn.Module):
    def forward(self, x):
        return x.relu().view(-1, 4, 2, 4)


def inputs():
    return (torch.rand(2, 4, 8),)
