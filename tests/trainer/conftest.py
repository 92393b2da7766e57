import os

# Set before torch is imported, because the last bits of a sum depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
