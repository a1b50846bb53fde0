//! Which rank updates which parameters, and in which messages they travel.

use std::cmp::Reverse;

use burn::module::Module;
use regard_nn::models::named_parameters;

/// Elements of a bucket, but for a parameter that has more: a message of 4 MiB takes some ten times as long as its start.
const BUCKET: usize = 1 << 20;

/// A parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Dotted name.
    pub name: String,
    /// Elements.
    pub size: usize,
    /// The rank that updates it.
    pub owner: usize,
}

/// Parameters of one owner that travel together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// The rank that updates them.
    pub owner: usize,
    /// Their names.
    pub names: Vec<String>,
}

/// A function of the sizes of the parameters and the number of ranks.
#[derive(Clone, Debug)]
pub struct Layout {
    /// By name.
    pub parameters: Vec<Parameter>,
    /// In the order in which all ranks exchange them; the owners take turns.
    pub buckets: Vec<Bucket>,
}

impl Layout {
    /// Whole parameters, the largest first, each to the rank that has the fewest elements so far.
    pub fn of<M: Module>(model: &M, ranks: usize) -> Self {
        Self::deal(sizes(model), ranks, BUCKET)
    }

    fn deal(mut sizes: Vec<(String, usize)>, ranks: usize, bucket: usize) -> Self {
        sizes.sort();
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|&i| (Reverse(sizes[i].1), i));
        let (mut owners, mut held) = (vec![0; sizes.len()], vec![0; ranks]);
        for i in order {
            let owner = (0..ranks).min_by_key(|rank| held[*rank]).expect("at least one rank");
            owners[i] = owner;
            held[owner] += sizes[i].1;
        }
        let parameters: Vec<Parameter> =
            sizes.into_iter().zip(owners).map(|((name, size), owner)| Parameter { name, size, owner }).collect();
        let mut dealt: Vec<Vec<Bucket>> = (0..ranks).map(|rank| buckets(&parameters, rank, bucket)).collect();
        let rounds = dealt.iter().map(Vec::len).max().unwrap_or(0);
        let mut all = Vec::new();
        for round in 0..rounds {
            all.extend(dealt.iter_mut().filter_map(|own| own.get_mut(round)).map(std::mem::take));
        }
        Self { parameters, buckets: all }
    }

    /// Parameters of a rank, by name.
    pub fn owned(&self, rank: usize) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().filter(move |parameter| parameter.owner == rank)
    }

    /// The owner of a parameter.
    pub fn owner(&self, name: &str) -> Option<usize> {
        let place = self.parameters.binary_search_by(|parameter| parameter.name.as_str().cmp(name));
        place.ok().map(|place| self.parameters[place].owner)
    }
}

fn buckets(parameters: &[Parameter], owner: usize, most: usize) -> Vec<Bucket> {
    let (mut all, mut filled) = (Vec::new(), most);
    for parameter in parameters.iter().filter(|parameter| parameter.owner == owner) {
        if filled + parameter.size > most {
            all.push(Bucket { owner, names: Vec::new() });
            filled = 0;
        }
        filled += parameter.size;
        all.last_mut().expect("just made").names.push(parameter.name.clone());
    }
    all
}

/// Names and sizes of the parameters, without buffers.
fn sizes<M: Module>(model: &M) -> Vec<(String, usize)> {
    let trained = named_parameters(model).into_iter().filter(|parameter| !parameter.buffer);
    trained.map(|parameter| (parameter.name, parameter.values.len())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_dealt_by_size_and_travel_in_buckets() {
        let sizes = [("a", 4), ("b", 10), ("c", 3), ("d", 3), ("e", 1)].map(|(name, size)| (name.to_owned(), size));
        let layout = Layout::deal(sizes.to_vec(), 2, 5);
        let owned = |rank| layout.owned(rank).map(|p| p.name.as_str()).collect::<String>();
        assert_eq!((owned(0), owned(1)), ("be".into(), "acd".into()));
        let buckets: Vec<_> = layout.buckets.iter().map(|bucket| (bucket.owner, bucket.names.concat())).collect();
        assert_eq!(buckets, [(0, "b".into()), (1, "a".into()), (0, "e".into()), (1, "c".into()), (1, "d".into())]);
        assert_eq!((layout.owner("c"), layout.owner("x")), (Some(1), None));
        assert_eq!(Layout::deal(sizes.to_vec(), 1, 100).buckets.len(), 1);
    }
}
