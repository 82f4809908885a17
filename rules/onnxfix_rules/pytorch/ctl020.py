"""Split with split, not with tensor_split.

The legacy exporter writes tensor_split as SplitToSequence and SequenceAt, which TensorRT does not import, and split as
Split. The dynamo exporter writes neither as a sequence.
"""

import torch

EXPORTERS = ("legacy",)


class Before(torch.nn.Module):
    def forward(self, x):
        gate, value, bias = x.tensor_split(3, dim=-1)
        return gate.sigmoid() * value + bias


class After(torch.nn.Module):
    def forward(self, x):
        gate, value, bias = x.split(x.shape[-1] // 3, dim=-1)
        return gate.sigmoid() * value + bias


def inputs():
    return (torch.rand(2, 5, 6),)
