"""Classify images of classes that grow over time: the product for people with photos.

May import methods, training, nn and data; never research, service or cli.
Start with estimator.py (`IncrementalClassifier`), then class_set.py, heads.py and fitting/.
"""
