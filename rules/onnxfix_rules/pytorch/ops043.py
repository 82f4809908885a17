"""Standardize weights by var_mean, not by batch_norm in training mode.

The legacy exporter writes a BatchNormalization in training mode, which TensorRT refuses; the dynamo exporter folds the
weights. If the mode was not intended, call model.eval() before the export.
"""

import torch
import torch.nn.functional as F
from torch import nn

EXPORTERS = ("legacy",)
SAFETY = "numeric"


class Before(nn.Conv2d):
    def __init__(self):
        super().__init__(2, 3, 3)

    def forward(self, x):
        weight = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(weight, None, None, training=True, eps=1e-6)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias)


class After(Before):
    def forward(self, x):
        var, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        return F.conv2d(x, (self.weight - mean) * torch.rsqrt(var + 1e-6), self.bias)


def inputs():
    return (torch.randn(1, 2, 6, 6),)
