from trainer.parallel.allocator import enable_expandable_segments

enable_expandable_segments()  # As in the trainer: before a module of this package imports PyTorch.
