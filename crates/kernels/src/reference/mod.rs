//! Plain float64 twins of every mechanism: written to be read, not to be fast.
