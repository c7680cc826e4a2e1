"""Pure decisions, one idea from a paper in each file: numbers go in, a decision comes out."""
