"""Choose with torch.where instead of assigning to x[mask].

The dynamo exporter writes `x[mask] = value` as NonZero and ScatterND, whose number of places depends on data. The
legacy exporter writes a Where if the value is a number.
"""

import torch

EXPORTERS = ("dynamo",)


class Before(torch.nn.Module):
    def forward(self, scores, mask):
        scores = scores.clone()
        scores[mask] = -1e4
        return scores.softmax(-1)


class After(torch.nn.Module):
    def forward(self, scores, mask):
        return torch.where(mask, -1e4, scores).softmax(-1)


def inputs():
    return torch.rand(2, 3, 4), torch.rand(2, 3, 4) > 0.5
