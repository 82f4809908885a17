"""Resize by a product with the weights of each axis, in place of antialias=True.

The dynamo exporter writes antialias=True as an attribute of Resize that TensorRT does not support; the legacy exporter
refuses it. Interpolation is linear and separable: an identity matrix, resized once, is the weights.
"""

import torch
import torch.nn.functional as F

EXPORTERS = ("dynamo",)
SAFETY = "numeric"


class Before(torch.nn.Module):
    def forward(self, x):
        return F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True)


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weights = F.interpolate(torch.eye(8)[None, None], size=(4, 8), mode="bilinear", antialias=True)
        self.register_buffer("weights", weights[0, 0], persistent=False)

    def forward(self, x):
        return self.weights @ x @ self.weights.T


def inputs():
    return (torch.rand(1, 3, 8, 8),)
