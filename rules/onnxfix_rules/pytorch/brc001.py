"""Keep scales and offsets in the rank of what they are applied to.

PyTorch broadcasts a vector against an image's last axis, and both exporters store it as a vector. With its leading
axes of 1 the constant needs no layer of its own that reshapes it.
"""

import torch


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        return torch.relu(x) * self.scale


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(1, 1, 8))

    def forward(self, x):
        return torch.relu(x) * self.scale


def inputs():
    return (torch.rand(2, 4, 8),)
