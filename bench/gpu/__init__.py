from trainer.parallel.allocator import let_segments_grow

let_segments_grow()  # as the trainer does, before a module of this package imports PyTorch
