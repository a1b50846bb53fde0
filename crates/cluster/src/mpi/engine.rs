//! One rank's messages, and what ranks tell one another about themselves.

use super::library::{self, Group, UnderWay};

/// Messages of the ranks about themselves, apart from those of the job.
const ASK: i32 = 1;
const ANSWER: i32 = 2;
const LEAVE: i32 = 3;
const DONE: i32 = 4;

/// One rank's state.
#[derive(Debug)]
pub struct Engine {
    rank: usize,
    /// For messages of the job; `None` when it is over.
    all: Option<Group>,
    /// For messages of the ranks about themselves.
    aside: Option<Group>,
    sends: Vec<UnderWay>,
    /// Notes whose bytes have not all arrived, by tag and sender.
    notes: Vec<(i32, usize, UnderWay)>,
    /// Signs of life by rank.
    answers: Vec<u64>,
    /// The first rank that told that it leaves with an error, and its exit code.
    left: Option<(usize, u8)>,
    /// A rank that gave no sign of life.
    lost: Option<usize>,
    /// Other ranks that have done all their work.
    done: usize,
}

impl Engine {
    /// Starts MPI.
    pub fn start() -> Result<Self, String> {
        let all = library::start()?;
        let (rank, answers) = (all.rank(), vec![0; all.size()]);
        let aside = Some(all.copy());
        let (sends, notes) = (Vec::new(), Vec::new());
        Ok(Self { rank, all: Some(all), aside, sends, notes, answers, left: None, lost: None, done: 0 })
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn ranks(&self) -> usize {
        self.answers.len()
    }

    /// Sends a message, which is kept until it has gone.
    pub fn send(&mut self, to: usize, tag: i32, bytes: Vec<u8>) {
        let sent = self.all.as_ref().map(|all| all.send(to, tag, bytes));
        self.sends.extend(sent);
    }

    /// The next message of a rank under a tag, if it has begun to arrive.
    pub fn find(&mut self, from: usize, tag: i32) -> Option<UnderWay> {
        self.all.as_ref()?.find(Some(from), tag).map(|(_, message)| message)
    }

    /// Looks after what is under way; whether anything is.
    pub fn tend(&mut self) -> bool {
        let Some(aside) = &self.aside else { return false };
        for tag in [ASK, ANSWER, LEAVE, DONE] {
            while let Some((from, note)) = aside.find(None, tag) {
                self.notes.push((tag, from, note));
            }
        }
        for (tag, from, note) in std::mem::take(&mut self.notes) {
            match note.finish() {
                Ok(bytes) => self.take(tag, from, &bytes),
                Err(note) => self.notes.push((tag, from, note)),
            }
        }
        let sends = std::mem::take(&mut self.sends);
        self.sends = sends.into_iter().filter_map(|send| send.finish().err()).collect();
        !self.sends.is_empty() || !self.notes.is_empty()
    }

    /// Takes in what a rank told about itself.
    fn take(&mut self, tag: i32, from: usize, bytes: &[u8]) {
        match tag {
            ASK => self.tell(from, ANSWER, &[]),
            ANSWER => self.answers[from] += 1,
            LEAVE => drop(self.left.get_or_insert((from, bytes.first().copied().unwrap_or(1)))),
            _ => self.done += 1,
        }
    }

    fn tell(&mut self, to: usize, tag: i32, bytes: &[u8]) {
        let sent = self.aside.as_ref().map(|aside| aside.send(to, tag, bytes.to_vec()));
        self.sends.extend(sent);
    }

    fn tell_all(&mut self, tag: i32, bytes: &[u8]) {
        for to in (0..self.ranks()).filter(|to| *to != self.rank).collect::<Vec<_>>() {
            self.tell(to, tag, bytes);
        }
    }

    /// Asks a rank for a sign of life.
    pub fn ask(&mut self, rank: usize) {
        self.tell(rank, ASK, &[]);
    }

    /// Asks all ranks for a sign of life.
    pub fn ask_all(&mut self) {
        self.tell_all(ASK, &[]);
    }

    /// Signs of life of a rank so far.
    pub fn answers(&self, rank: usize) -> u64 {
        self.answers[rank]
    }

    /// The first rank that left with an error, and its exit code.
    pub fn left(&self) -> Option<(usize, u8)> {
        self.left
    }

    /// A rank that gave no sign of life.
    pub fn lost(&self) -> Option<usize> {
        self.lost
    }

    pub fn lose(&mut self, rank: usize) {
        self.lost = Some(rank);
    }

    /// Tells that this rank leaves with an error.
    pub fn tell_leaving(&mut self, code: u8) {
        self.tell_all(LEAVE, &[code]);
    }

    /// Tells that this rank has done all its work.
    pub fn tell_done(&mut self) {
        self.tell_all(DONE, &[]);
    }

    /// Whether all other ranks have done their work.
    pub fn all_done(&self) -> bool {
        self.done + 1 >= self.ranks()
    }

    /// Whether a rank is gone.
    pub fn broken(&self) -> bool {
        self.left.is_some() || self.lost.is_some()
    }

    /// Ends MPI.
    pub fn finish(&mut self) {
        self.all = None;
        if let Some(aside) = self.aside.take() {
            aside.free();
            library::end();
        }
    }
}
