//! Ranks as processes that talk over TCP: for measurements on one machine, on several, or on namespaces of one with a
//! slower network between them.

use std::{
    io::{Read, Result, Write},
    net::{TcpListener, TcpStream},
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use regard_cluster::{ClusterError, Communicator, Mailbox, Message};

/// One rank.
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    /// To each other rank, by way of a thread that writes.
    outgoing: Vec<Option<Sender<Message>>>,
    /// From each other rank, by way of a thread that reads.
    incoming: Vec<Option<Mailbox>>,
    sent: AtomicU64,
    writers: Vec<JoinHandle<()>>,
}

/// What was sent is on its way before a rank leaves.
impl Drop for Tcp {
    fn drop(&mut self) {
        self.outgoing.clear();
        self.writers.drain(..).for_each(|writer| drop(writer.join()));
    }
}

impl Tcp {
    /// Rank `rank` of those at these addresses, `host:port` each.
    pub fn join(rank: usize, addresses: &[String]) -> Result<Self> {
        let listener = TcpListener::bind(&addresses[rank])?;
        let mut streams: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
        for (to, address) in addresses.iter().enumerate().take(rank) {
            let mut stream = loop {
                match TcpStream::connect(address) {
                    Ok(stream) => break stream,
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            };
            stream.write_all(&(rank as u32).to_le_bytes())?;
            streams[to] = Some(stream);
        }
        for _ in rank + 1..addresses.len() {
            let (mut stream, _) = listener.accept()?;
            let mut from = [0; 4];
            stream.read_exact(&mut from)?;
            streams[u32::from_le_bytes(from) as usize] = Some(stream);
        }
        let (mut outgoing, mut incoming, mut writers) = (Vec::new(), Vec::new(), Vec::new());
        for stream in streams {
            let Some(stream) = stream else {
                outgoing.push(None);
                incoming.push(None);
                continue;
            };
            stream.set_nodelay(true)?;
            let (to_writer, written) = channel::<Message>();
            let (read, channel) = channel::<Message>();
            let (mut writer, mut reader) = (stream.try_clone()?, stream);
            writers.push(thread::spawn(move || {
                for (tag, bytes) in written {
                    let mut head = tag.to_le_bytes().to_vec();
                    head.extend((bytes.len() as u64).to_le_bytes());
                    if writer.write_all(&head).and_then(|()| writer.write_all(&bytes)).is_err() {
                        return;
                    }
                }
            }));
            thread::spawn(move || {
                let mut head = [0; 12];
                while reader.read_exact(&mut head).is_ok() {
                    let (tag, len) = head.split_at(4);
                    let tag = u32::from_le_bytes(tag.try_into().expect("four bytes"));
                    let mut bytes = vec![0; u64::from_le_bytes(len.try_into().expect("eight bytes")) as usize];
                    if reader.read_exact(&mut bytes).is_err() || read.send((tag, bytes)).is_err() {
                        return;
                    }
                }
            });
            outgoing.push(Some(to_writer));
            incoming.push(Some(Mailbox::new(channel)));
        }
        Ok(Self { rank, outgoing, incoming, sent: AtomicU64::new(0), writers })
    }
}

impl Communicator for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.outgoing.len()
    }

    fn send(&self, to: usize, tag: u32, bytes: Vec<u8>) -> std::result::Result<(), ClusterError> {
        self.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let outgoing = self.outgoing[to].as_ref().expect("another rank");
        outgoing.send((tag, bytes)).map_err(|_| ClusterError::Lost { rank: to })
    }

    fn receive(&self, from: usize, tag: u32) -> std::result::Result<Vec<u8>, ClusterError> {
        let incoming = self.incoming[from].as_ref().expect("another rank");
        incoming.receive(tag).ok_or(ClusterError::Lost { rank: from })
    }

    fn bytes_sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}
