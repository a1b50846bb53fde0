//! Test data and error measures shared by the tests of every crate; not published.
