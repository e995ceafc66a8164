"""Recipes: parametrised kernels for the families that models spend their time on."""
