"""Write a recurrence over a dynamic axis as one weighted sum, not as a scripted loop.

The legacy exporter writes `for t in range(x.shape[1])` in torch.jit.script as a Loop with a trip count and a condition
that is always true. A sum of steps, weighted by their age, has no Loop. The dynamo exporter refuses this loop.
"""

import torch

EXPORTERS = ("legacy",)
SAFETY = "numeric"
EXPORT = {"input_names": ["x"], "dynamic_axes": {"x": {1: "time"}}}


@torch.jit.script
def discount(x, decay: float):
    total = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        total = decay * total + x[:, t]
    return total


class Before(torch.nn.Module):
    def forward(self, x):
        return discount(x, 0.9)


class After(torch.nn.Module):
    def forward(self, x):
        age = torch.arange(x.shape[1] - 1, -1, -1)
        return (x * (0.9**age).unsqueeze(-1)).sum(1)


def inputs():
    return (torch.rand(2, 6, 3),)
