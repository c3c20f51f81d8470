"""Offer a method and a benchmark to fewmore."""
