"""Programs that make files of this repository: data files of the package, weights of the window network, the picture of the imports."""
