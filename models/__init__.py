"""How a two-tower model is built, trained, measured and served; knows no lake, no scheduler."""
