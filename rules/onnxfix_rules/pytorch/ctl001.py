"""Replace EmbeddingBag over bags of equal length by Embedding and a sum.

The legacy exporter writes EmbeddingBag as a Loop over the bags, with a trip count, a condition and a scan output.
Bags of equal length are an axis of the indices: a Gather and a ReduceSum. For other bags see CTL021.
"""

import torch

EXPORTERS = ("legacy",)
SAFETY = "numeric"


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 4, mode="sum")

    def forward(self, ids):
        return self.bag(ids)


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = torch.nn.Embedding(10, 4)

    def forward(self, ids):
        return self.bag(ids).sum(1)


def inputs():
    return (torch.randint(0, 10, (3, 5)),)
