"""The compiler half: a torch.compile backend for the card, the only place that touches torch._inductor."""
