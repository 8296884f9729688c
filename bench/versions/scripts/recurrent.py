"""A two-layer LSTM and a GRU through cuDNN, with dropout and packed sequences."""

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(10000, 256)
        self.lstm = torch.nn.LSTM(256, 512, num_layers=2, dropout=0.2, bidirectional=True, batch_first=True)
        self.gru = torch.nn.GRU(1024, 256, batch_first=True)
        self.out = torch.nn.Linear(256, 50)

    def forward(self, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.out(self.gru(hidden)[0])


model = Tagger().cuda()
optimizer = torch.optim.RMSprop(model.parameters())
for step in range(5):
    words = torch.randint(10000, (64, 100), device="cuda")
    lengths = torch.randint(50, 101, (64,))
    lengths[0] = 100
    loss = model(words, lengths).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
