"""Payloads through torch.distributed: gloo and NCCL."""
