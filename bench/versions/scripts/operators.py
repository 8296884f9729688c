"""Libraries beside cuBLAS and cuDNN: Fourier transforms, linear algebra, sparse matrices, sorting, random."""

import torch

weight = torch.nn.Parameter(torch.randn(256, 256, device="cuda"))
optimizer = torch.optim.Adagrad([weight])
for step in range(3):
    optimizer.zero_grad()
    symmetric = weight @ weight.T + torch.eye(256, device="cuda")
    spectrum = torch.fft.irfft2(torch.fft.rfft2(torch.randn(8, 256, 256, device="cuda")) * 2, s=(256, 256))
    loss = spectrum.mean() + torch.linalg.cholesky(symmetric).diagonal().sum()
    loss = loss + torch.linalg.eigvalsh(symmetric).sum() + torch.linalg.solve(symmetric, weight).mean()
    loss = loss + torch.linalg.qr(weight)[1].mean() + torch.linalg.svdvals(weight).sum()
    loss = loss + torch.linalg.inv(symmetric).mean() + torch.linalg.slogdet(symmetric)[1]
    index = torch.randint(256, (2, 1000), device="cuda")
    sparse = torch.sparse_coo_tensor(index, torch.randn(1000, device="cuda"), (256, 256))
    loss = loss + torch.sparse.mm(sparse, weight).mean()
    compressed = torch.eye(256, device="cuda").to_sparse_csr()
    loss = loss + (compressed @ weight).mean()
    order = weight.flatten().sort().values.cumsum(0).mean() + weight.topk(10).values.mean()
    loss = loss + order + torch.bmm(weight.expand(4, 256, 256), weight.expand(4, 256, 256)).mean()
    loss.backward()
    optimizer.step()
    print("step", step)
