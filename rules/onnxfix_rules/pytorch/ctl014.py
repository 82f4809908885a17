"""Write a loop of a few iterations in plain Python, outside of torch.jit.script.

The legacy exporter writes a scripted loop as a Loop, and unrolls a Python loop. The dynamo exporter unrolls both; it
writes torch.while_loop as a Loop.
"""

import torch

EXPORTERS = ("legacy",)


@torch.jit.script
def refine(x, steps: int):
    i = 0
    while i < steps:
        x = x - 0.25 * torch.sin(x)
        i += 1
    return x


class Before(torch.nn.Module):
    def forward(self, x):
        return refine(x, 4)


class After(torch.nn.Module):
    def forward(self, x):
        for _ in range(4):
            x = x - 0.25 * torch.sin(x)
        return x


def inputs():
    return (torch.rand(2, 3),)
