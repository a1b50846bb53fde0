//! Calls into the tokenizer library.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a call, or what it said when it failed. The library takes some kinds of damage in `tokenizer.json` for impossible and
/// panics there: that is an error of the file, too.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Err(said.unwrap_or_else(|| "the library gave up".into()))
        }
    }
}
