"""The strategies, which decide how the processes of a training share the work. Each has a file.

They know tensors, modules and processes, and never import the step, the loop or the Trainer.
"""
