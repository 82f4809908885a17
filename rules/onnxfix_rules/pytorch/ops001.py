"""Unpack codes of 4 bits by // and %, not by >> and &.

The dynamo exporter writes >> as a BitShift, which TensorRT does not import. The result is the same for all integers.
The legacy exporter writes >> as a division.
"""

import torch

EXPORTERS = ("dynamo",)
OPERATORS = ("BitShift",)


class Before(torch.nn.Module):
    def forward(self, table, packed):
        codes = torch.stack([packed >> 4, packed & 15], -1)
        return table[codes]


class After(torch.nn.Module):
    def forward(self, table, packed):
        codes = torch.stack([packed // 16, packed % 16], -1)
        return table[codes]


def inputs():
    return torch.randn(16), torch.randint(0, 256, (2, 4))
