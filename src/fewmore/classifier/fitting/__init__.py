"""Train an `IncrementalClassifier`: everything that `fit` does between images and a model.

May import what `fewmore.classifier` may. Start with frozen.py (a pretrained backbone) or
from_scratch.py; both embed the base images by base.py and end with calibrate.py.

Memory: features of at most 10,000 images in 4 rotations (205 MB at 1,280 features), their scores
(400 MB at 1,000 classes), a few batches of decoded images, and half a kilobyte for the path and
the content hash of each image. From scratch, the center squares of all images lie in a temporary
file that is memory-mapped (on a GPU: in its memory), and the features of all images are held once,
two kilobytes each at 512 features.
"""
