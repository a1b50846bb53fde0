//! The calls of MPI that ranks need, each with its argument for soundness. An error in one ends the process, as MPI's standard
//! has it, so that there are no error codes to look at.
//!
//! Calls must not overlap: whoever uses this module takes turns.

use std::{mem::MaybeUninit, ptr};

use mpi_sys as ffi;

/// Some ranks that talk among themselves.
#[derive(Debug)]
pub struct Group(ffi::MPI_Comm);

/// Bytes that MPI reads or writes until a request is done. Dropped before that, they are never freed.
#[derive(Debug)]
pub struct UnderWay {
    request: ffi::MPI_Request,
    bytes: *mut [u8],
}

// SAFETY: handles of MPI belong to the process, not to a thread: at the level of threads that `start` demands, any thread may
// use them as long as calls do not overlap, which users of this module see to.
unsafe impl Send for Group {}
// SAFETY: as above; the bytes belong to the value alone.
unsafe impl Send for UnderWay {}

/// Starts MPI; the group of all ranks.
///
/// # Errors
/// An MPI in use already, or one whose calls only one thread may make.
pub fn start() -> Result<Group, String> {
    let mut begun = 0;
    // SAFETY: may be called at any time.
    unsafe { ffi::MPI_Initialized(&mut begun) };
    if begun != 0 {
        return Err("MPI is in use in this process already".into());
    }
    let mut level = 0;
    // SAFETY: MPI has not begun; without arguments both pointers may be null.
    let all = unsafe {
        ffi::MPI_Init_thread(ptr::null_mut(), ptr::null_mut(), ffi::RSMPI_THREAD_SERIALIZED, &mut level);
        Group(ffi::RSMPI_COMM_WORLD)
    };
    // SAFETY: a constant of the library. Levels are ordered.
    if level < unsafe { ffi::RSMPI_THREAD_SERIALIZED } {
        return Err("this MPI lets only one thread make calls, expected at least MPI_THREAD_SERIALIZED; use one that was built \
                    with threads"
            .into());
    }
    Ok(all)
}

/// Ends MPI; nothing of it may be called after that.
pub fn end() {
    // SAFETY: called once, by `Engine::finish`.
    unsafe { ffi::MPI_Finalize() };
}

impl Group {
    /// The same ranks, whose messages are told from those of the first group.
    pub fn copy(&self) -> Self {
        let mut copy = MaybeUninit::uninit();
        // SAFETY: the group is live, and MPI writes the copy.
        unsafe {
            ffi::MPI_Comm_dup(self.0, copy.as_mut_ptr());
            Self(copy.assume_init())
        }
    }

    pub fn rank(&self) -> usize {
        let mut rank = 0;
        // SAFETY: the group is live.
        unsafe { ffi::MPI_Comm_rank(self.0, &mut rank) };
        rank as usize
    }

    pub fn size(&self) -> usize {
        let mut size = 0;
        // SAFETY: the group is live.
        unsafe { ffi::MPI_Comm_size(self.0, &mut size) };
        size as usize
    }

    /// Sends bytes, fewer than 2^31, to a rank of the group.
    pub fn send(&self, to: usize, tag: i32, bytes: Vec<u8>) -> UnderWay {
        let size = i32::try_from(bytes.len()).expect("a message of less than 2 GiB");
        let bytes = Box::into_raw(bytes.into_boxed_slice());
        let mut request = MaybeUninit::uninit();
        // SAFETY: the bytes stay where they are, unchanged, until the request is done: `UnderWay::finish` alone frees them.
        unsafe {
            ffi::MPI_Isend(bytes.cast(), size, ffi::RSMPI_UINT8_T, to as i32, tag, self.0, request.as_mut_ptr());
            UnderWay { request: request.assume_init(), bytes }
        }
    }

    /// The next message under a tag of a rank, or of any, with its rank, if it has begun to arrive.
    pub fn find(&self, from: Option<usize>, tag: i32) -> Option<(usize, UnderWay)> {
        let (mut found, mut message, mut status) = (0, MaybeUninit::uninit(), MaybeUninit::<ffi::MPI_Status>::uninit());
        // SAFETY: the group is live; MPI writes message and status where it has found one.
        let (mut message, status) = unsafe {
            let source = from.map_or(ffi::RSMPI_ANY_SOURCE, |from| from as i32);
            ffi::MPI_Improbe(source, tag, self.0, &mut found, message.as_mut_ptr(), status.as_mut_ptr());
            if found == 0 {
                return None;
            }
            (message.assume_init(), status.assume_init())
        };
        let mut size = 0;
        // SAFETY: a status that MPI wrote.
        unsafe { ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut size) };
        let bytes = Box::into_raw(vec![0u8; size as usize].into_boxed_slice());
        let mut request = MaybeUninit::uninit();
        // SAFETY: as many bytes as the message has, which nothing else touches until the request is done.
        let request = unsafe {
            ffi::MPI_Imrecv(bytes.cast(), size, ffi::RSMPI_UINT8_T, &mut message, request.as_mut_ptr());
            request.assume_init()
        };
        Some((status.MPI_SOURCE as usize, UnderWay { request, bytes }))
    }

    /// Frees a copy. All ranks do.
    pub fn free(mut self) {
        // SAFETY: the handle is used no more.
        unsafe { ffi::MPI_Comm_free(&mut self.0) };
    }
}

impl UnderWay {
    /// The bytes, if MPI is done with them.
    pub fn finish(mut self) -> Result<Vec<u8>, Self> {
        let mut done = 0;
        // SAFETY: a request that is not done yet; MPI clears it when it is.
        unsafe { ffi::MPI_Test(&mut self.request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        if done == 0 {
            return Err(self);
        }
        // SAFETY: the pointer of a box that MPI has let go of, made back once: `self` is gone then.
        Ok(unsafe { Box::from_raw(self.bytes) }.into_vec())
    }
}
