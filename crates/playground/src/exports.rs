//! The functions of the WebAssembly module: numbers in and out, buffers in its memory.
//!
//! The page writes files into buffers and calls [`load`], then writes a request into buffer 0 and calls [`ask`]. Both
//! say whether they failed; the answer, or the error in words, is then at [`text`] and [`numbers`].

use std::{cell::RefCell, mem::take, ptr::null_mut};

use crate::{Answer, Playground};

#[derive(Default)]
struct State {
    /// Request, config, weights, tokenizer.
    buffers: [Vec<u8>; 4],
    playground: Option<Playground>,
    answer: Answer,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// The address of buffer `slot` (0 request, 1 config, 2 weights, 3 tokenizer) with `length` bytes to write; null if
/// there is no such buffer. It lasts until [`load`], [`ask`], or the next call for the same slot.
#[unsafe(no_mangle)]
pub extern "C" fn buffer(slot: usize, length: usize) -> *mut u8 {
    STATE.with_borrow_mut(|state| {
        state.buffers.get_mut(slot).map_or(null_mut(), |buffer| {
            *buffer = vec![0; length];
            buffer.as_mut_ptr()
        })
    })
}

/// Reads the model in buffers 1 to 3. 0 if that went well, 1 if the answer is an error.
#[unsafe(no_mangle)]
pub extern "C" fn load() -> u32 {
    STATE.with_borrow_mut(|state| {
        let [_, config, weights, tokenizer] = take(&mut state.buffers);
        let made = Playground::new(&config, &weights, &tokenizer).map(|playground| {
            state.playground = Some(playground);
            Answer::default()
        });
        state.finish(made)
    })
}

/// Answers the request in buffer 0. 0 if that went well, 1 if the answer is an error.
#[unsafe(no_mangle)]
pub extern "C" fn ask() -> u32 {
    STATE.with_borrow_mut(|state| {
        let request = String::from_utf8(take(&mut state.buffers[0])).map_err(|error| format!("request: {error}"));
        let answer = request.and_then(|request| {
            state.playground.as_mut().ok_or_else(|| "no model was loaded".to_owned())?.answer(&request)
        });
        state.finish(answer)
    })
}

/// The address of the text of the answer, which lasts until the next answer.
#[unsafe(no_mangle)]
pub extern "C" fn text() -> *const u8 {
    STATE.with_borrow(|state| state.answer.text.as_ptr())
}

/// Bytes of the text of the answer.
#[unsafe(no_mangle)]
pub extern "C" fn text_length() -> usize {
    STATE.with_borrow(|state| state.answer.text.len())
}

/// The address of the numbers of the answer, in 32 bits, which last until the next answer.
#[unsafe(no_mangle)]
pub extern "C" fn numbers() -> *const f32 {
    STATE.with_borrow(|state| state.answer.numbers.as_ptr())
}

/// How many numbers the answer has.
#[unsafe(no_mangle)]
pub extern "C" fn numbers_length() -> usize {
    STATE.with_borrow(|state| state.answer.numbers.len())
}

impl State {
    fn finish(&mut self, answer: Result<Answer, String>) -> u32 {
        let failed = answer.is_err();
        self.answer = answer.unwrap_or_else(|text| Answer { text, numbers: Vec::new() });
        u32::from(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{CONFIG, TOKENIZER, WEIGHTS};

    fn put(slot: usize, bytes: &[u8]) {
        let place = buffer(slot, bytes.len());
        // SAFETY: the buffer has this length and nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(place, bytes.len()) }.copy_from_slice(bytes);
    }

    fn said() -> String {
        // SAFETY: the answer lasts until the next one.
        let bytes = unsafe { std::slice::from_raw_parts(text(), text_length()) };
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_page_loads_and_asks() {
        put(0, br#"{"do": "about"}"#);
        assert_eq!((ask(), &said()[..]), (1, "no model was loaded"));
        assert!(buffer(4, 1).is_null());
        put(2, b"not weights");
        assert_eq!(load(), 1);
        for (slot, file) in [(1, CONFIG), (2, WEIGHTS), (3, TOKENIZER)] {
            put(slot, file);
        }
        assert_eq!((load(), numbers_length()), (0, 0));
        put(0, &[0xff, 0xfe]);
        assert_eq!(ask(), 1);
        put(0, br#"{"do": "read", "text": "a dog"}"#);
        assert_eq!(ask(), 0);
        assert!(said().starts_with(r#"{"tokens":[1,"#));
        // SAFETY: as above.
        let logits = unsafe { std::slice::from_raw_parts(numbers(), numbers_length()) };
        assert!(logits.len().is_multiple_of(512) && logits.iter().all(|x| x.is_finite()));
    }
}
