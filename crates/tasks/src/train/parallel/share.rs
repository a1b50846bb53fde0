//! What ranks tell one another beside gradients and values: where a run starts, and what a checkpoint holds.

use std::{collections::BTreeMap, path::Path};

use regard_cluster::{ClusterError, broadcast};

use super::{Parallel, Reader, Writer, tags};
use crate::train::{
    Checkpoint, HostTensor, HostTensors, Moments, RunState, TrainError, decode_tensors, encode_tensors,
};

/// The file that errors of a message name.
const MESSAGE: &str = "a message of rank 0";

impl Parallel {
    /// Whether this rank writes and reports.
    pub fn leads(&self) -> bool {
        self.cluster.rank() == 0
    }

    /// The model and the state of rank 0, which gives them, on every rank, and of its moments those of this rank.
    ///
    /// # Errors
    /// A rank that has left the job.
    pub fn share_start(&self, own: Option<Checkpoint>) -> Result<Checkpoint, TrainError> {
        let message = own.as_ref().map(|own| {
            let mut writer = Writer::default();
            writer.bytes(&serde_json::to_vec(&own.state).expect("plain numbers"));
            writer.bytes(&encode_tensors(&own.model));
            writer.done()
        });
        let message = broadcast(self.cluster(), 0, tags::START, message)?;
        let mut reader = Reader::of(&message);
        let state: RunState = serde_json::from_slice(reader.bytes()).map_err(|error| unreadable(&error.to_string()))?;
        let model = decode_tensors(Path::new(MESSAGE), reader.bytes())?;
        let mut moments = match own {
            Some(own) => self.deal_moments(own.moments)?,
            None => read_moments(&self.cluster.receive(0, tags::MOMENTS)?)?,
        };
        moments.retain(|name, _| self.layout.owner(name) == Some(self.cluster.rank()));
        Ok(Checkpoint { model, moments, state })
    }

    /// Sends each other rank its moments; returns all.
    fn deal_moments(&self, all: BTreeMap<String, Moments>) -> Result<BTreeMap<String, Moments>, ClusterError> {
        for to in 1..self.cluster.ranks() {
            let own = all.iter().filter(|(name, _)| self.layout.owner(name) == Some(to));
            self.cluster.send(to, tags::MOMENTS, written_moments(own))?;
        }
        Ok(all)
    }

    /// The moments of all ranks on rank 0; on another its own.
    ///
    /// # Errors
    /// A rank that has left the job.
    pub fn gather_moments(&self, mut own: BTreeMap<String, Moments>) -> Result<BTreeMap<String, Moments>, TrainError> {
        if self.leads() {
            for from in 1..self.cluster.ranks() {
                own.extend(read_moments(&self.cluster.receive(from, tags::MOMENTS)?)?);
            }
        } else {
            self.cluster.send(0, tags::MOMENTS, written_moments(own.iter()))?;
        }
        Ok(own)
    }

    /// Tensors that rank 0 has, or that there are none, on every rank.
    ///
    /// # Errors
    /// A rank that has left the job.
    pub fn share_tensors(&self, own: Option<HostTensors>) -> Result<Option<HostTensors>, TrainError> {
        let message = self.leads().then(|| own.as_ref().map(encode_tensors).unwrap_or_default());
        let message = broadcast(self.cluster(), 0, tags::MODEL, message)?;
        match (self.leads(), message.is_empty()) {
            (true, _) => Ok(own),
            (false, true) => Ok(None),
            (false, false) => decode_tensors(Path::new(MESSAGE), &message).map(Some),
        }
    }
}

fn written_moments<'a>(moments: impl Iterator<Item = (&'a String, &'a Moments)>) -> Vec<u8> {
    let mut all = [HostTensors::new(), HostTensors::new()];
    for (name, Moments { first, second }) in moments {
        for (tensors, data) in all.iter_mut().zip([first, second]) {
            tensors.insert(name.clone(), HostTensor { shape: vec![data.len()], data: data.clone() });
        }
    }
    let mut writer = Writer::default();
    all.iter().for_each(|tensors| writer.bytes(&encode_tensors(tensors)));
    writer.done()
}

fn read_moments(message: &[u8]) -> Result<BTreeMap<String, Moments>, TrainError> {
    let mut reader = Reader::of(message);
    let first = decode_tensors(Path::new(MESSAGE), reader.bytes())?;
    let mut second = decode_tensors(Path::new(MESSAGE), reader.bytes())?;
    let pair = |(name, first): (String, HostTensor)| {
        let second = second.remove(&name).ok_or_else(|| unreadable("half of the moments is missing"))?;
        Ok((name, Moments { first: first.data, second: second.data }))
    };
    first.into_iter().map(pair).collect()
}

fn unreadable(problem: &str) -> TrainError {
    TrainError::checkpoint(MESSAGE, format!("{problem}; start the same version of the program on every machine"))
}
