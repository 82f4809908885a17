"""Compute both branches and choose with torch.where, in place of torch.cond.

The dynamo exporter writes torch.cond as an If. With a dynamic batch its branches compute floats of a dynamic size, of
which the engine may compute only a part. The legacy exporter writes scripted branches as an If, too.
"""

import torch

EXPORTERS = ("dynamo",)
EXPORT = {"dynamic_shapes": ({0: "batch"},)}


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.near, self.far = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, x):
        return torch.cond(x.mean() > 0.5, self.near, self.far, (x,))


class After(Before):
    def forward(self, x):
        return torch.where(x.mean() > 0.5, self.near(x), self.far(x))


def inputs():
    return (torch.rand(2, 3),)
