//! One update by several ranks, or in several parts by one.
//!
//! An update's batches are cut into parts, which ranks take in contiguous blocks. Loss and gradients are sums over parts, each
//! weighted by its share of all items, added in the order of a [`SumTree`]: the same bits for any number of ranks. Each
//! parameter has one rank that updates it, to which its gradient is summed, that keeps its moments, and that sends its new
//! value to the others (ZeRO-1, Rajbhandari et al. 2020).
//!
//! Gradients leave a backward pass together, at its end, so that a rank sends the sums of its parts after its last pass.
//! Buckets of parameters are exchanged without waiting for one another: while one travels, another is added up.

mod layout;
mod message;
mod sequence;
mod share;
mod spread;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Device, Tensor, TensorData},
};
use regard_cluster::{ClusterError, Communicator, Link, SumTree, gather_all};
use regard_nn::{
    blocks::{Context, RouterLog},
    models::ParameterPath,
    ops::with_elements,
};

use self::{
    layout::{Bucket, Layout},
    sequence::SequenceRanks,
};
pub(super) use self::{
    message::{Reader, Writer},
    spread::spread,
};
use super::{
    AdamW, Batch, Model, TrainConfig, TrainError,
    gradients::{Gradients, Pass, Settings, sum_of},
    routers::{read_records, write_records},
};

/// Tags of the messages of training.
pub(super) mod tags {
    pub const GRADIENTS: u32 = 0x100;
    pub const VALUES: u32 = 0x101;
    pub const FIGURES: u32 = 0x102;
    pub const START: u32 = 0x103;
    pub const MOMENTS: u32 = 0x104;
    pub const MODEL: u32 = 0x105;
    pub const EVALUATION: u32 = 0x106;
}

/// How an update is shared among ranks.
#[derive(Debug)]
pub struct Parallel {
    cluster: Arc<dyn Communicator>,
    /// Parts of a batch.
    parts: usize,
    /// The ranks that share a part, where several do.
    sequence: Option<SequenceRanks>,
    tree: SumTree,
    layout: Layout,
}

/// Gradients of a bucket, in the order of its names.
type Travelling = Vec<Option<Tensor<1>>>;

impl Parallel {
    /// Of a job in which `sequence` ranks share each sequence, or of one rank whose batches are cut.
    ///
    /// # Errors
    /// Fewer parts than groups of ranks; a model with buffers that follow the data batch by batch, or that cannot be spread.
    pub fn new(
        cluster: Arc<dyn Communicator>,
        model: &Model,
        config: &TrainConfig,
        sequence: usize,
    ) -> Result<Self, TrainError> {
        let shared = (sequence != 1).then(|| SequenceRanks::new(&cluster, sequence, model)).transpose()?;
        let ranks = cluster.ranks() / sequence;
        let parts = match config.parts {
            0 => ranks.div_ceil(config.accumulate),
            parts => parts,
        };
        if parts > config.batch {
            let expected = format!("at least {parts}, a sequence for each of the parts that {ranks} ranks take");
            return Err(TrainError::config("batch", config.batch, expected));
        }
        let leaves = parts * config.accumulate;
        if leaves < ranks {
            let expected = format!(
                "at least {}, so that each of the {ranks} ranks has a part of an update",
                ranks.div_ceil(config.accumulate)
            );
            return Err(TrainError::config("parts", config.parts, expected));
        }
        if leaves * sequence > 1 && model.follows_batches() {
            let expected =
                "1, without other ranks: the priors of mixture.inference = 'soft-em' follow the data batch by batch";
            return Err(TrainError::config("parts", parts, expected));
        }
        let (tree, layout) = (SumTree::new(leaves * sequence, cluster.ranks()), Layout::of(model, cluster.ranks()));
        Ok(Self { tree, layout, parts, sequence: shared, cluster })
    }

    pub fn cluster(&self) -> &dyn Communicator {
        &*self.cluster
    }

    /// Where in the tree a rank stands. Where several share a sequence, the first of each group come before the second ones: so
    /// the order of the sum is by pieces and then by parts, however many groups there are.
    fn place_of(&self, rank: usize) -> usize {
        let each = self.sequence.as_ref().map_or(1, SequenceRanks::ranks);
        rank % each * (self.cluster.ranks() / each) + rank / each
    }

    /// The rank at a place of the tree.
    fn rank_at(&self, place: usize) -> usize {
        let each = self.sequence.as_ref().map_or(1, SequenceRanks::ranks);
        let groups = self.cluster.ranks() / each;
        place % groups * each + place / groups
    }

    /// Loss over all items of `batches`, with `rows` for each sequence, and the gradients of the parameters that this rank
    /// updates. `stop` if this rank was asked to end.
    ///
    /// # Errors
    /// A rank that has left the job; sequences that cannot be spread.
    pub fn pass(
        &self,
        model: &Model,
        batches: &[Batch],
        settings: Settings,
        rows: usize,
        stop: bool,
    ) -> Result<Pass, TrainError> {
        let place = self.place_of(self.cluster.rank());
        let (own, leaves) = (self.tree.block(place), self.tree.leaves());
        let all_parts = batches.len() * self.parts;
        let items: usize = batches.iter().map(Batch::items).sum();
        let routers = Arc::new(RouterLog::new());
        let (mut held, mut losses) = (self.tree.start::<Gradients>(), Vec::new());
        for leaf in own {
            let number = leaf % all_parts;
            let part = batches[number / self.parts].part(number % self.parts, self.parts, rows);
            let mut gradients = Gradients::default();
            // A part without targets has no mean loss.
            let mut loss = 0.0;
            if let Some(part) = part.filter(|part| part.items() > 0) {
                let share = (leaves > 1).then(|| part.items() as f64 / items as f64);
                let mut context = Context::training(settings.seed, settings.step).with_micro_batch(leaf as u64);
                if settings.log {
                    context = context.with_router_log(routers.clone());
                }
                loss = match &self.sequence {
                    None => gradients.add_batch(model, &part, settings, context, share),
                    Some(sequence) => {
                        let (piece, spread, of_part) = sequence.cut(&part)?;
                        let share = share.map(|share| share * of_part);
                        let loss = gradients.add_batch(model, &piece, settings, context.with_spread(spread), share);
                        sequence.check()?;
                        loss
                    }
                };
            }
            losses.push(loss);
            held.push(leaf, gradients, Gradients::plus);
        }
        let mut gradients = Gradients::default();
        let device = device_of(model);
        for bucket in &self.layout.buckets {
            let own = held.map_mut(|sums| bucket.names.iter().map(|name| sums.take(name)).collect::<Travelling>());
            let mut link = BucketLink { parallel: self, device: &device };
            if let Some(sums) = self.tree.sum(place, self.place_of(bucket.owner), own, &mut link)? {
                for (name, sum) in bucket.names.iter().zip(sums) {
                    sum.into_iter().for_each(|sum| gradients.put(name.clone(), sum));
                }
            }
        }
        let squares: Vec<f64> =
            self.layout.owned(self.cluster.rank()).map(|parameter| gradients.squares(&parameter.name)).collect();
        let mut figures = Writer::default();
        figures.count(stop.into());
        figures.numbers(&losses);
        figures.numbers(&squares);
        write_records(&routers.take(), &mut figures);
        Ok(self.figures(figures.done(), gradients)?)
    }

    /// Puts together what the ranks know.
    fn figures(&self, own: Vec<u8>, gradients: Gradients) -> Result<Pass, ClusterError> {
        let (mut stop, mut loss, mut routers, mut squares) = (false, 0.0, Vec::new(), Vec::new());
        let messages = gather_all(self.cluster(), tags::FIGURES, own)?;
        let mut readers: Vec<Reader> = messages.iter().map(|message| Reader::of(message)).collect();
        let losses: Vec<Vec<f64>> = readers
            .iter_mut()
            .map(|reader| {
                stop |= reader.count() != 0;
                reader.numbers()
            })
            .collect();
        (0..losses.len()).for_each(|place| losses[self.rank_at(place)].iter().for_each(|part| loss += part));
        for mut reader in readers {
            squares.push(reader.numbers().into_iter());
            routers.extend(read_records(&mut reader));
        }
        let squares = self.layout.parameters.iter().filter_map(|parameter| squares[parameter.owner].next());
        let norm = squares.sum::<f64>().sqrt();
        Ok(Pass { loss, gradients, norm, routers, stop })
    }

    /// Update `t` (from 1) of `model` by the gradients of this rank, and the values that others have updated.
    ///
    /// # Errors
    /// A rank that has left the job.
    pub fn apply(
        &self,
        gradients: &Gradients,
        model: Model,
        optimizer: &mut AdamW,
        t: usize,
        rate: f64,
        scale: f32,
    ) -> Result<Model, ClusterError> {
        let model = gradients.apply(model, optimizer, t, rate, scale);
        let (own, ranks) = (self.cluster.rank(), self.cluster.ranks());
        if ranks == 1 {
            return Ok(model);
        }
        let updated = self.layout.owned(own).map(|parameter| parameter.name.clone());
        let updated: BTreeSet<String> = updated.filter(|name| gradients.has(name)).collect();
        let mut values = values_of(&model, updated);
        for bucket in self.layout.buckets.iter().filter(|bucket| bucket.owner == own) {
            let bytes = written(bucket, &mut values);
            for to in (0..ranks).filter(|to| *to != own) {
                self.cluster.send(to, tags::VALUES, bytes.clone())?;
            }
        }
        let mut values = BTreeMap::new();
        for bucket in self.layout.buckets.iter().filter(|bucket| bucket.owner != own) {
            let message = self.cluster.receive(bucket.owner, tags::VALUES)?;
            let mut reader = Reader::of(&message);
            for name in &bucket.names {
                if reader.count() != 0 {
                    values.insert(name.clone(), reader.floats());
                }
            }
        }
        Ok(with_values(model, values))
    }
}

/// The values of a bucket.
fn written(bucket: &Bucket, values: &mut BTreeMap<String, Vec<f32>>) -> Vec<u8> {
    let mut writer = Writer::default();
    for name in &bucket.names {
        let own = values.remove(name);
        writer.count(own.is_some().into());
        own.into_iter().for_each(|own| writer.floats(&own));
    }
    writer.done()
}

/// Every model has parameters, and all of them lie on one device.
fn device_of(model: &Model) -> Device {
    model.devices().into_iter().next().unwrap_or_default().without_autodiff()
}

/// How the gradients of a bucket get to another rank.
struct BucketLink<'a> {
    parallel: &'a Parallel,
    device: &'a Device,
}

impl Link<Travelling> for BucketLink<'_> {
    fn send(&mut self, to: usize, sum: Travelling) -> Result<(), ClusterError> {
        let mut writer = Writer::default();
        writer.count(sum.len());
        for gradient in sum {
            writer.count(gradient.is_some().into());
            gradient.iter().for_each(|gradient| with_elements(gradient, |elements| writer.floats(elements)));
        }
        self.parallel.cluster.send(self.parallel.rank_at(to), tags::GRADIENTS, writer.done())
    }

    fn receive(&mut self, from: usize) -> Result<Travelling, ClusterError> {
        let message = self.parallel.cluster.receive(self.parallel.rank_at(from), tags::GRADIENTS)?;
        let mut reader = Reader::of(&message);
        let count = reader.count();
        let mut gradient = |_| (reader.count() != 0).then(|| vector(reader.floats(), self.device));
        Ok((0..count).map(&mut gradient).collect())
    }

    fn add(&mut self, left: Travelling, right: Travelling) -> Travelling {
        left.into_iter().zip(right).map(|(left, right)| sum_of(left, right)).collect()
    }
}

fn vector(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let size = [values.len()];
    Tensor::from_data(TensorData::new(values, size), device)
}

/// Copies of some parameters.
fn values_of(model: &Model, names: BTreeSet<String>) -> BTreeMap<String, Vec<f32>> {
    struct Collect(ParameterPath, BTreeSet<String>, BTreeMap<String, Vec<f32>>);
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(name) = self.1.take(&self.0.name()) {
                self.2.insert(name, with_elements(&param.val().without_autodiff(), <[f32]>::to_vec));
            }
        }
    }
    let mut collect = Collect(ParameterPath::default(), names, BTreeMap::new());
    model.visit(&mut collect);
    collect.2
}

/// The model with other values of some parameters.
fn with_values(model: Model, values: BTreeMap<String, Vec<f32>>) -> Model {
    struct Replace(ParameterPath, BTreeMap<String, Vec<f32>>);
    impl ModuleMapper for Replace {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.0.enter(name, container);
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0.exit();
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let Some(values) = self.1.remove(&self.0.name()) else { return param };
            let (id, old, mapper) = param.consume();
            let strategy = old.gradient_checkpointing_strategy().unwrap_or_default();
            let (shape, device) = (old.shape(), old.device().without_autodiff());
            let new = Tensor::<D>::from_data(TensorData::new(values, shape), &device);
            let tracked = new.autodiff().with_gradient_checkpointing_strategy(strategy).require_grad();
            Param::from_mapped_value(id, tracked, mapper)
        }
    }
    model.map(&mut Replace(ParameterPath::default(), values))
}
