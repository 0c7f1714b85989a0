"""SiameseNorm: topologies at rising learning rates."""
