"""Remove axes of size 1 by squeeze, not by flatten or view.

The dynamo exporter writes flatten, view and reshape as a Reshape with allowzero=1, in every operator set. A Squeeze
has no such attribute.
"""

import torch

EXPORTERS = ("dynamo",)


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = torch.nn.AdaptiveAvgPool2d(1)
        self.head = torch.nn.Linear(3, 4)

    def forward(self, image):
        return self.head(torch.flatten(self.pool(image), 1))


class After(Before):
    def forward(self, image):
        return self.head(self.pool(image).squeeze((2, 3)))


def inputs():
    return (torch.rand(2, 3, 8, 8),)
