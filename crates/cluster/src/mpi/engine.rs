//! The calls of MPI.

use std::{fmt, mem::ManuallyDrop};

use mpi::{
    Threading,
    datatype::traits::Equivalence,
    environment::Universe,
    point_to_point::{Destination, Source},
    request::{Request, StaticScope},
    topology::{Communicator as _, SimpleCommunicator},
};

/// Messages of the ranks about themselves, apart from those of the job.
const ASK: i32 = 1;
const ANSWER: i32 = 2;
const LEAVE: i32 = 3;

type Bytes = Request<'static, [u8], StaticScope>;

/// Bytes that MPI reads or writes until `request` is done. Dropped before that, they stay where they are.
struct UnderWay {
    /// Absent once done.
    request: Option<Bytes>,
    bytes: *mut [u8],
}

/// A message that arrives.
pub struct Incoming(UnderWay);

/// One rank's state of MPI.
pub struct Engine {
    universe: ManuallyDrop<Universe>,
    world: ManuallyDrop<SimpleCommunicator>,
    /// For messages of the ranks about themselves.
    aside: ManuallyDrop<SimpleCommunicator>,
    sends: Vec<UnderWay>,
    /// Signs of life by rank.
    answers: Vec<u64>,
    /// The first rank that told that it leaves with an error, and its exit code.
    left: Option<(usize, u8)>,
    over: bool,
}

// SAFETY: handles of MPI belong to the process, not to a thread, and at the level of threads that `Engine::start` demands any
// thread may use them as long as calls do not overlap. An engine is only used through `&mut self`.
unsafe impl Send for Engine {}
// SAFETY: as above; a message that arrives is only looked at by `Engine::poll`.
unsafe impl Send for Incoming {}

impl Engine {
    /// Starts MPI.
    pub fn start() -> Result<Self, String> {
        let (universe, threading) =
            mpi::initialize_with_threading(Threading::Serialized).ok_or("MPI is in use in this process already")?;
        if !matches!(threading, Threading::Serialized | Threading::Multiple) {
            return Err(format!(
                "this MPI allows calls of one thread only ({threading:?}); use one that was built with threads"
            ));
        }
        let world = universe.world();
        let aside = world.duplicate();
        let answers = vec![0; world.size() as usize];
        let [world, aside] = [world, aside].map(ManuallyDrop::new);
        let universe = ManuallyDrop::new(universe);
        Ok(Self { universe, world, aside, sends: Vec::new(), answers, left: None, over: false })
    }

    pub fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    pub fn ranks(&self) -> usize {
        self.answers.len()
    }

    /// Sends a message, which is kept until it has gone.
    pub fn send(&mut self, to: usize, tag: i32, bytes: Vec<u8>) {
        let sent = UnderWay::send(&self.world, to, tag, bytes);
        self.sends.push(sent);
    }

    /// The next message of a rank under a tag, if it has begun to arrive.
    pub fn find(&mut self, from: usize, tag: i32) -> Option<Incoming> {
        let (message, status) = self.world.process_at_rank(from as i32).immediate_matched_probe_with_tag(tag)?;
        let size = status.count(u8::equivalent_datatype()) as usize;
        let bytes = Box::into_raw(vec![0u8; size].into_boxed_slice());
        // SAFETY: the box is freed by `UnderWay::finish` alone, after the request is done.
        let request = message.immediate_matched_receive_into(StaticScope, unsafe { &mut *bytes });
        Some(Incoming(UnderWay { request: Some(request), bytes }))
    }

    /// The bytes of a message, once they are all there.
    pub fn poll(&mut self, Incoming(under_way): Incoming) -> Result<Vec<u8>, Incoming> {
        under_way.finish().map(<[u8]>::into_vec).map_err(Incoming)
    }

    /// Looks after what is under way; whether anything is.
    pub fn tend(&mut self) -> bool {
        if self.over {
            return false;
        }
        let sends = std::mem::take(&mut self.sends);
        self.sends = sends.into_iter().filter_map(|send| send.finish().err()).collect();
        while let Some((from, _)) = self.note(ASK) {
            let answer = UnderWay::send(&self.aside, from, ANSWER, Vec::new());
            self.sends.push(answer);
        }
        while let Some((from, _)) = self.note(ANSWER) {
            self.answers[from] += 1;
        }
        while let Some((from, bytes)) = self.note(LEAVE) {
            self.left.get_or_insert((from, bytes.first().copied().unwrap_or(1)));
        }
        !self.sends.is_empty()
    }

    /// A short message of any rank about itself.
    fn note(&mut self, tag: i32) -> Option<(usize, Vec<u8>)> {
        let (message, status) = self.aside.any_process().immediate_matched_probe_with_tag(tag)?;
        let mut bytes = vec![0u8; status.count(u8::equivalent_datatype()) as usize];
        // A byte at most: it has arrived with its envelope.
        let status = message.matched_receive_into(&mut bytes[..]);
        Some((status.source_rank() as usize, bytes))
    }

    /// Asks a rank for a sign of life.
    pub fn ask(&mut self, rank: usize) {
        let question = UnderWay::send(&self.aside, rank, ASK, Vec::new());
        self.sends.push(question);
    }

    /// Signs of life of a rank so far.
    pub fn answers(&self, rank: usize) -> u64 {
        self.answers[rank]
    }

    /// The first rank that left with an error, and its exit code.
    pub fn left(&self) -> Option<(usize, u8)> {
        self.left
    }

    pub fn tell_leaving(&mut self, code: u8) {
        let own = self.rank();
        for to in (0..self.ranks()).filter(|to| *to != own) {
            let told = UnderWay::send(&self.aside, to, LEAVE, vec![code]);
            self.sends.push(told);
        }
    }

    /// Ends MPI, once.
    pub fn finish(&mut self) {
        if !std::mem::replace(&mut self.over, true) {
            // SAFETY: each is dropped once, and nothing of MPI is called when the engine is over.
            unsafe {
                ManuallyDrop::drop(&mut self.aside);
                ManuallyDrop::drop(&mut self.world);
                ManuallyDrop::drop(&mut self.universe);
            }
        }
    }
}

impl UnderWay {
    fn send(to_ranks_of: &SimpleCommunicator, to: usize, tag: i32, bytes: Vec<u8>) -> Self {
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let to = to_ranks_of.process_at_rank(to as i32);
        // SAFETY: the box is freed by `finish` alone, after the request is done.
        let request = to.immediate_send_with_tag(StaticScope, unsafe { &*bytes }, tag);
        Self { request: Some(request), bytes }
    }

    /// The bytes, if MPI is done with them.
    fn finish(mut self) -> Result<Box<[u8]>, Self> {
        match self.request.take().map(Request::test) {
            Some(Err(request)) => {
                self.request = Some(request);
                Err(self)
            }
            // SAFETY: the pointer is that of a box, and MPI has let go of it.
            _ => Ok(unsafe { Box::from_raw(self.bytes) }),
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // MPI may still use the bytes: they are never freed. A request that is dropped panics.
        std::mem::forget(self.request.take());
    }
}

impl Incoming {
    /// Leaves the message to MPI.
    pub fn give_up(self) {
        drop(self);
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Engine").field("under_way", &self.sends.len()).finish_non_exhaustive()
    }
}
