"""Convert a tensor only if it may have another type.

PyTorch returns a float32 tensor itself for `.float()`, but the legacy exporter writes a Cast. The dynamo exporter
removes it.
"""

import torch

EXPORTERS = ("legacy",)


class Before(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x).float(), -1)


class After(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(torch.relu(x), -1)


def inputs():
    return (torch.rand(2, 4),)
