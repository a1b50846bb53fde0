//! The command line of Regard.
fn main() {}
