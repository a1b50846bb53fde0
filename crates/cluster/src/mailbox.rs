//! Messages of one sender, by tag.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError, mpsc::Receiver},
};

/// A message under its tag.
pub type Message = (u32, Vec<u8>);

/// What one rank sends to another, with the messages that arrived before they were asked for.
#[derive(Debug)]
pub struct Mailbox(Mutex<Incoming>);

#[derive(Debug)]
struct Incoming {
    channel: Receiver<Message>,
    early: HashMap<u32, VecDeque<Vec<u8>>>,
}

impl Mailbox {
    /// Of the messages that come through a channel.
    pub fn new(channel: Receiver<Message>) -> Self {
        Self(Mutex::new(Incoming { channel, early: HashMap::new() }))
    }

    /// The next message under `tag`; waits for it. `None` where the sender has left without sending it.
    pub fn receive(&self, tag: u32) -> Option<Vec<u8>> {
        let mut incoming = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = incoming.early.get_mut(&tag).and_then(VecDeque::pop_front) {
            return Some(message);
        }
        loop {
            let (seen, bytes) = incoming.channel.recv().ok()?;
            if seen == tag {
                return Some(bytes);
            }
            incoming.early.entry(seen).or_default().push_back(bytes);
        }
    }
}
