"""What a bundle and its pages are: manifest, codec, layouts of pages and windows, limits of the kernels."""
