"""Take the batch from x.shape[0], not from len(x).

The legacy exporter traces the module, and len(x) is a number in a trace, as are int() and tolist(): the traced batch
becomes a constant of the Reshape. A size in x.shape stays dynamic. The dynamo exporter keeps both dynamic.
"""

import torch

EXPORTERS = ("legacy",)
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {0: "batch"}}}


class Before(torch.nn.Module):
    def forward(self, x):
        return x.view(len(x), 5, 2, 4).transpose(1, 2).softmax(-1)


class After(torch.nn.Module):
    def forward(self, x):
        return x.view(x.shape[0], 5, 2, 4).transpose(1, 2).softmax(-1)


def inputs():
    return (torch.randn(3, 5, 8),)
