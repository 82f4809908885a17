"""Add the rows of each bag by a product with a mask, in place of EmbeddingBag.

Both exporters write EmbeddingBag as a Loop in which the size of a Slice depends on the iteration: the rows of one bag.
A mask of the indices in each bag has a size of its own, and one MatMul adds the rows of all bags.
"""

import torch

EXPORTERS = ("legacy",)
SAFETY = "numeric"


class Before(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.EmbeddingBag(10, 4, mode="sum")

    def forward(self, ids, offsets):
        return self.table(ids, offsets)


class After(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids, offsets):
        count = ids.shape[0]
        place = torch.arange(count, device=ids.device)
        end = torch.cat([offsets[1:], offsets.new_full((1,), count)])
        mask = (place >= offsets.unsqueeze(1)) & (place < end.unsqueeze(1))
        return mask.float() @ self.table(ids)


def inputs():
    return torch.randint(0, 10, (7,)), torch.tensor([0, 3, 5])
