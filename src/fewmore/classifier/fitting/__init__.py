"""Train an `IncrementalClassifier`: everything that `fit` does between images and a model.

May import what `fewmore.classifier` may. Start with frozen.py (a pretrained backbone) or
from_scratch.py; both embed the base images by base.py,
simulate sessions on held-out ones by sessions.py, and end with calibrate.py.

Memory: the features of all images, twice (10 kilobytes each at 1,280 features), the scores of at
most 4,000 held-out ones (16 MB for each simulated session at 1,000 classes), a few batches of
decoded images, and half a kilobyte for the path and the content hash of each image. From scratch,
the center squares of all images lie in a temporary file that is memory-mapped (on a GPU: in its
memory).
"""
