//! The binary from outside: arguments and files in, exit code, output, errors and files out.
//!
//! One test program for all commands, so that it is linked once.

mod adapt;
mod approx;
mod attend_errors;
mod attend_golden;
mod bench;
mod book;
mod compare;
mod config_errors;
mod copy;
mod cost;
mod data;
mod folders;
mod information;
mod inspect;
mod language;
mod lm;
mod man;
mod paths;
mod predict;
mod prepare;
mod probe;
mod program;
mod ranks;
mod reproduce;
mod streams;
mod study;
mod summarize;
mod swap;
mod tensors;
mod training;
mod translate;
mod view;
