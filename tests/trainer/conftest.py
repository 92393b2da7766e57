import os

# Before torch is imported: what is compared to the last bit must not depend on how many threads a sum was cut into.
os.environ.setdefault("OMP_NUM_THREADS", "1")
