"""The complete pipeline in miniature, to be watched: text, vocabulary, pre-training, fine-tuning, publishing.

It runs the same code as the recipes, on text and labels that every machine with this project already has.
"""
