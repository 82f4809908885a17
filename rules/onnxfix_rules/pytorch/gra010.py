"""Compute what depends on parameters alone before the export.

The legacy exporter folds Add, Mul, Div and Transpose of parameters, but not Exp. The dynamo exporter folds this one,
too.
"""

import torch

EXPORTERS = ("legacy",)


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.rand(()))

    def forward(self, x):
        return x.relu() * self.logit_scale.exp()


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(()).exp())

    def forward(self, x):
        return x.relu() * self.scale


def inputs():
    return (torch.rand(2, 8),)
