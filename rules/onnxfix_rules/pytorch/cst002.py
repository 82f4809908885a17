"""Convert to a type only where the tensor may have another one.

`.float()` of a float32 tensor changes nothing in PyTorch, but the legacy exporter still writes a Cast. The dynamo
exporter removes it.
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
