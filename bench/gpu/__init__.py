from trainer.parallel.allocator import let_segments_grow

let_segments_grow()  # As in the trainer: before a module of this package imports PyTorch.
